# What callgrind writes, as lines of instructions (of an object, at an address, in a function, in a program) and of calls.
BEGIN { OFS = "\t" }
{ gsub(/\t/, " ") }
/^cmd: / { program = $2; sub(/.*\//, "", program); next }
/^ob=/ { object = substr($0, 4); next }
/^fn=/ { name = substr($0, 4); next }
/^cob=/ { other = substr($0, 5); next }
/^cfn=/ { callee = substr($0, 5); next }
/^calls=/ {
    split(substr($0, 7), words, " ")
    calls[frame(callee, other == "" ? object : other) OFS frame(name, object)] += words[1]
    other = ""; of_call = 1; next
}
/^0x/ { if (!of_call) own[object OFS $1 OFS frame(name, object) OFS program] += $2; of_call = 0 }
END {
    for (each in calls) printf "calls\t%.0f\t%s\n", calls[each], each
    for (each in own) printf "own\t%.0f\t%s\n", own[each], each
}
