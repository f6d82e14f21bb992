.globl other
other:
 mov $7, %eax
 ret
.section .note.GNU-stack
