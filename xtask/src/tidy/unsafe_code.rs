//! Where `unsafe` may be written: the few places that speak to C.

use crate::tidy::Fault;
use crate::tidy::tokens::Tokens;

/// Files and folders; a path that starts with one of these is such a place.
const PLACES: &[&str] = &[
    "gpu/src/ffi.rs",
    "gpu/src/ffi/",
    "tests/cuda-sim/",
    "tests/nvml-sim/",
    "worker/src/bridge.rs",
    "worker/src/bridge/",
    "worker/src/proof.rs",
];

/// Finds the word in code, whatever it introduces: a block, a function, an implementation, an attribute.
pub(super) fn check(path: &str, tokens: &Tokens) -> Vec<Fault> {
    if PLACES.iter().any(|place| path.starts_with(place)) {
        return Vec::new();
    }
    tokens
        .words("unsafe")
        .map(|line| Fault::at(path, line, "`unsafe` outside of its places (listed in xtask/src/tidy/unsafe_code.rs)"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: &str = "fn read(p: *const u8) -> u8 {\n    // SAFETY: no\n    unsafe { *p }\n}\n";

    #[test]
    fn the_named_places_may_and_others_may_not() {
        for (path, lines) in [
            ("gpu/src/ffi.rs", 0),
            ("gpu/src/ffi/mig.rs", 0),
            ("worker/src/bridge/mod.rs", 0),
            ("worker/src/proof.rs", 0),
            ("tests/nvml-sim/src/lib.rs", 0),
            ("gpu/src/lib.rs", 1),
            ("worker/src/main.rs", 1),
            ("worker/src/proof_of_nothing.rs", 1),
            ("tests/src/lib.rs", 1),
            ("core/src/gpu/src/ffi.rs", 1),
        ] {
            let faults = check(path, &Tokens::read(UNSAFE).unwrap());
            assert_eq!(faults.len(), lines, "{path}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.place == format!("{path}:3")), "{faults:?}");
        }
    }

    #[test]
    fn only_code_counts() {
        for (code, count) in [
            ("// unsafe\n/* unsafe */ fn f() {}", 0),
            ("/// unsafe\nfn f() { let _ = \"unsafe\"; let _ = r#\"unsafe { }\"#; }", 0),
            ("#![deny(unsafe_code)] fn unsafe_name() {}", 0),
            ("unsafe fn f() {}", 1),
            ("unsafe impl Send for X {}", 1),
            ("#[unsafe(no_mangle)] fn f() {}", 1),
            ("macro_rules! m { () => { unsafe { f() } } }", 1),
            ("unsafe extern \"C\" { fn f(); }", 1),
        ] {
            assert_eq!(check("core/src/lib.rs", &Tokens::read(code).unwrap()).len(), count, "{code}");
        }
    }
}
