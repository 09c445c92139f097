//! Sets the library's SONAME to cuBLAS's.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcublas.so.13");
}
