//! Gives the library the driver's SONAME, by which mock-cudnn finds it among the libraries already loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
