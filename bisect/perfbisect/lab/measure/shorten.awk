# Of the lines of add_up.awk, those that cost most first, leaves the callers out, for which `rare` stands, of all but the first
# `most` and of those beyond `size` bytes. No cost is left out.
BEGIN { FS = "\t"; status = 1 }
$1 == "status" { status = $2; next }
NF > 4 && (++chains > most || (bytes += length($0) + 1) > size) {
    cost[$3 FS $4] += $1; number[$3 FS $4] += $2; next
}
{ print }
END {
    for (each in cost) printf "%.0f\t%d\t%s\t%s\n", cost[each], number[each], each, rare
    exit status
}
