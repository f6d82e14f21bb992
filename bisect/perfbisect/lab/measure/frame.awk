# A frame as of core/explain/profiles.py, from a function and the path of its binary.
function frame(name, path) {
    sub(/'[0-9]+$/, "", name)  # the depth of a recursion
    if (name ~ /^(\?\?\?|0x[0-9a-f]+)$/) name = "[unknown]"
    if (length(name) > 400) name = substr(name, 1, 200) "..." substr(name, length(name) - 196)
    if (!sub(/^\/.*\//, "/", path) && path !~ /^\//) path = "[unknown]"
    return name " (" path ")"
}
