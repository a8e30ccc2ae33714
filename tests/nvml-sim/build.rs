//! Names the library as NVIDIA's is named, and keeps it loaded once it is: it is closed and opened again by one process,
//! and its statics must survive that.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
