# Adds up the lines of callgrind.awk, each address with the functions that are inlined there.
BEGIN { FS = "\t" }
FILENAME == "inlined" { frames[$1, $2] = substr($0, length($1) + length($2) + 3) "\t"; next }
$1 == "calls" { printf "%s\tcalls\t%s\t%s\n", $2, $3, $4 }
$1 == "own" { own[$6 "\t" frames[$3, $4] $5] += $2 }
END { for (each in own) printf "%.0f\t1\t%s\n", own[each], each }
