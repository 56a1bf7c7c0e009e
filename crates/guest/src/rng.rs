// SPDX-License-Identifier: GPL-2.0-only
//! A random number generator whose numbers repeat.

/// splitmix64: the same seed generates the same numbers.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `end - 1`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns a uniformly distributed number in the open interval from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Returns a normally distributed number, with mean 0 and standard deviation 1 (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_generates_the_same_numbers() {
        let numbers = |seed| {
            let mut rng = Rng(seed);
            [(); 4].map(|()| rng.below(1000))
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn normal_numbers_have_mean_and_deviation() {
        let mut rng = Rng(1);
        let numbers: Vec<f64> = (0..10_000).map(|_| rng.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e4;
        let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let median_and_tail = [0.0, 1.0].map(|x| numbers.iter().filter(|&&n| n < x).count());
        assert!(median_and_tail[0].abs_diff(5000) < 200, "{median_and_tail:?}");
        assert!(median_and_tail[1].abs_diff(8413) < 200, "{median_and_tail:?}");
    }
}
