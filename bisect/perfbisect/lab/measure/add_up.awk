# Adds up equal chains of what `perf script` prints, one on a line: see core/explain/profiles.py. A line of a frame begins with a
# tab; of the path of a file only the base name is kept, below "/", and those two are no files. Of `waits` a sample is taken where a
# thread leaves its processor, and its cost are the nanoseconds until it is back.
function take() {
    if ($1 == "ffffffffffffffff") return  # the copy of the stack ends here
    sub(/^[ \t]+[0-9a-f]+ +/, ""); gsub(/\t/, " ")
    if (!/ \(\/(dev\/zero|memfd:)/) sub(/ \(\/[^\/].*\//, " (/")
    chain = chain "\t" $0
}
function add() {
    if (head != "" && waits) { left[thread] = head chain; since[thread] = time }
    else if (head != "") { cost[head chain] += period; number[head chain]++ }
    head = chain = ""
}
/^\f/ { status = substr($0, 2); next }
/^\t/ { take(); next }
/PERF_RECORD_LOST lost [0-9]+$/ { lost += $NF; next }
/: PERF_RECORD_SWITCH IN *$/ {
    add(); sub(/: PERF_RECORD_SWITCH IN *$/, ""); back = $(NF-1)
    if (back in left) { cost[left[back]] += ($NF - since[back]) * 1e9; number[left[back]]++; delete left[back] }
    next
}
/: PERF_RECORD_SWITCH / { next }
NF == 0 { add(); next }
match($0, waits ? "[0-9]+ +[0-9.]+: *$" : "[0-9]+:? *$") {
    add(); head = substr($0, 1, RSTART - 1); gsub(/\t/, " ", head)
    period = substr($0, RSTART) + 0; thread = $(NF-1); time = $NF + 0
}
END {
    add()
    for (each in cost) printf "%.0f\t%d\t%s\n", cost[each], number[each], each
    printf "lost\t%d\nstatus\t%d\n", lost, status == "" ? 1 : status
}
