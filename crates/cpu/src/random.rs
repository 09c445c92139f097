//! Random numbers by position: each number depends only on the key and the position, so it is the same in any order,
//! division and device.

/// The odd number nearest to 2^64 over the golden ratio: neighboring places become distant states.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of the SplitMix64 generator (Steele, Lea and Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One key of several numbers, such as seed, layer and step.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key, part| mix((key ^ part).wrapping_add(GOLDEN)))
}

/// 32 random bits for a place.
pub fn bits(key: u64, place: u64) -> u32 {
    (mix(key.wrapping_add(place.wrapping_add(1).wrapping_mul(GOLDEN))) >> 32) as u32
}

/// A number from -1 up to 1 for a place, a multiple of 2^-23.
pub fn uniform(key: u64, place: u64) -> f32 {
    (bits(key, place) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_keys_are_independent_enough() {
        let key_of = key(&[1, 2, 3]);
        assert_ne!(key_of, key(&[1, 3, 2]));
        let count = 1 << 16;
        let mean = (0..count).map(|i| f64::from(uniform(key_of, i))).sum::<f64>() / count as f64;
        let square = (0..count).map(|i| f64::from(uniform(key_of, i)).powi(2)).sum::<f64>() / count as f64;
        assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        let both = (0..count).filter(|&i| bits(key_of, i) >> 31 == 1 && bits(key_of, i + 1) >> 31 == 1).count();
        assert!((both as f64 / count as f64 - 0.25).abs() < 0.01, "{both}");
    }
}
