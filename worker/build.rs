//! Compiles the C++ bridge against the libtorch that torch-sys was pointed at, and links only what a machine without
//! CUDA has as well: libc10 and libtorch_cpu.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/bridge/bridge.cpp");
    println!("cargo:rerun-if-changed=build.rs");
    // torch-sys tells where it found libtorch's libraries because it is a direct dependency with `links = "tch"`.
    let libraries = PathBuf::from(env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys is a direct dependency"));
    let include = libraries.parent().expect("libtorch's lib folder lies in its root").join("include");
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .std("c++17")
        .flag("-isystem")
        .flag(include.to_str().expect("the path of libtorch is UTF-8"))
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").to_str().expect("the path of libtorch is UTF-8"))
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .file("src/bridge/bridge.cpp")
        .compile("migperf_bridge");
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
}
