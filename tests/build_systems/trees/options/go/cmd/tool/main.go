package main

// #cgo CFLAGS: -DC=1
// int part(void) { return C; }
import "C"
import "fmt"

func main() { fmt.Println(C.part(), 3, 7, 2) }
