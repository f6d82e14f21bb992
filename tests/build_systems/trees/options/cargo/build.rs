use std::{env, process::Command};
fn main() {
    let script = "$CC $CFLAGS -DC=1 -c part.c -o $OUT_DIR/part.o && ar rcs $OUT_DIR/libpart.a $OUT_DIR/part.o";
    assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").unwrap());
    println!("cargo:rustc-link-lib=static=part");
}
