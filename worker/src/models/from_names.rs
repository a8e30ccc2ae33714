//! Values that follow from names: the same bits here and where reference values are made, without a file of weights.
//!
//! The rule is that of tests/parity/make_reference.py: splitmix64 from the FNV-1a hash of the name gives 24 bits for each
//! index. Scales keep activations near one through the deepest model, in fp16 too.

use tch::{Kind, TchError, Tensor};

/// FNV-1a, 64 bits.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// The 24 bits of one index.
fn bits(seed: u64, index: u64) -> u32 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    u32::try_from((z ^ (z >> 31)) >> 40).expect("24 bits are left")
}

fn numbers(shape: &[i64]) -> u64 {
    u64::try_from(shape.iter().product::<i64>()).unwrap_or(0)
}

/// `offset + scale·u` with u in [-1, 1), on the CPU in fp32.
fn affine(name: &str, shape: &[i64], offset: f32, scale: f32) -> Result<Tensor, TchError> {
    let seed = hash(name);
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact in fp32")]
    let unit = |index: u64| bits(seed, index) as f32 / 8_388_608.0 - 1.0;
    let values: Vec<f32> = (0..numbers(shape)).map(|index| unit(index) * scale + offset).collect();
    Tensor::f_from_slice(&values)?.f_view(shape)
}

/// A parameter's or buffer's values, on the CPU in fp32.
///
/// # Errors
/// When they don't fit.
pub fn parameter(name: &str, shape: &[i64]) -> Result<Tensor, TchError> {
    let (offset, scale) = match shape {
        [_, _, inputs] => (0.0, by_inputs(*inputs)),
        [_, inputs @ ..] if !inputs.is_empty() => (0.0, by_inputs(inputs.iter().product())),
        _ if name.ends_with("running_var") => (1.0, 0.5),
        _ if name.ends_with("running_mean") => (0.0, 0.1),
        _ if name.ends_with("weight") => (1.0, 0.1),
        _ => (0.0, 0.05),
    };
    affine(name, shape, offset, scale)
}

/// A variance of half the inverse of the inputs.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "rounded to fp32 on both sides")]
fn by_inputs(inputs: i64) -> f32 {
    (1.5 / inputs as f64).sqrt() as f32
}

/// An input of real numbers with a variance of about one, on the CPU in fp32.
///
/// # Errors
/// When it doesn't fit.
pub fn real(name: &str, shape: &[i64]) -> Result<Tensor, TchError> {
    affine(name, shape, 0.0, 1.75)
}

/// An input of `from` plus whole numbers below `below`, on the CPU in 64 bits.
///
/// # Errors
/// When it doesn't fit.
pub fn index(name: &str, shape: &[i64], from: i64, below: u32) -> Result<Tensor, TchError> {
    let seed = hash(name);
    let scaled = |index: u64| from + ((i64::from(bits(seed, index)) * i64::from(below)) >> 24);
    let values: Vec<i64> = (0..numbers(shape)).map(scaled).collect();
    Tensor::f_from_slice(&values)?.f_view(shape)?.f_to_kind(Kind::Int64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_the_scripts() {
        // From make_reference.py: words("conv1.weight", 4) and index("input.0", (4,), 30518).
        let seed = hash("conv1.weight");
        assert_eq!([0, 1, 2, 3].map(|index| bits(seed, index)), [9_144_840, 12_501_739, 384_562, 12_351_349]);
        let indices = Vec::<i64>::try_from(index("input.0", &[4], 0, 30_518).unwrap()).unwrap();
        assert_eq!(indices, [25_106, 16_894, 18_050, 8_822]);
        let weights = Vec::<f32>::try_from(parameter("bn1.weight", &[2]).unwrap()).unwrap();
        assert_eq!(weights, [0.972_040_8, 1.064_881_8]);
    }
}
