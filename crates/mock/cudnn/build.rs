//! Sets the library's SONAME to cuDNN's, and the version node of every exported symbol to the one that clients of the real
//! library ask for. Only GNU ld knows `--default-symver`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudnn.so.9,--default-symver");
}
