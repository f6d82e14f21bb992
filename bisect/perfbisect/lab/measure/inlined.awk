# What addr2line prints of addresses, as lines of those in inlined functions: these, innermost first.
function put() {
    if (count < 2) return
    printf "%s\t%s", ENVIRON["OBJECT"], address
    for (i = 1; i < count; i++) printf "\t%s", frame(names[i], ENVIRON["OBJECT"])
    print ""
}
/^0x[0-9a-f]+$/ { put(); address = $0; sub(/^0x0*/, "0x", address); count = line = 0; next }
++line % 2 { gsub(/\t/, " "); names[++count] = $0 }
END { put() }
