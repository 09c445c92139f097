//! Sets the library's SONAME to the driver's, by which mock-cudnn finds it among the libraries already loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
