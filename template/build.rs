//! Leaves the C library out: the module finds the one of the interpreter.

fn main() {
    for argument in ["-nostdlib", "-nostartfiles", "-Wl,--hash-style=both"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
