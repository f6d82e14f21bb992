#!/bin/sh
case "$*" in
    *--version) echo "$0  Ver $VERSION for Linux on x86_64 (Source distribution)"; exit ;;
    *--help) [ "$LACKS" = initialize-insecure ] || echo "  --initialize-insecure Create the default database"; exit ;;
esac
echo "${0##*/} $*" >>"$LOG"
case "$*" in *"$LACKS"*) exit 1 ;; esac
