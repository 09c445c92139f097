//! Gives the library cuDNN's SONAME, and every exported symbol the version node that clients of the real one ask for.
//! Only GNU ld knows `--default-symver`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudnn.so.9,--default-symver");
}
