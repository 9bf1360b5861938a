//! The Mersenne Twister as Python and NumPy use it, so that MISO's arrivals can be drawn as its
//! authors drew them.
//!
//! Source: Matsumoto and Nishimura, *Mersenne Twister*, ACM TOMACS 8 (1998); Python's
//! `random.sample`; NumPy's legacy `poisson` (Hörmann's PTRS, *Insurance: Mathematics and
//! Economics* 12, 1993).

use crate::cluster::number::{float, whole};
use tessera_model::number::{clamped, index};

/// Words of the state, and how far apart two of them are mixed: MT19937's own.
const N: usize = 624;
const M: usize = 397;

/// A seeded source of 32-bit numbers.
pub(super) struct MersenneTwister {
    state: [u32; N],
    at: usize,
}

impl MersenneTwister {
    /// Begins as `numpy.random.seed(seed)`.
    pub(super) fn numpy(seed: u32) -> Self {
        let mut state = [0; N];
        state[0] = seed;
        for at in 1..N {
            let last = state[at - 1] ^ (state[at - 1] >> 30);
            let step = clamped(at);
            state[at] = 1_812_433_253_u32.wrapping_mul(last).wrapping_add(step);
        }
        Self { state, at: N }
    }

    /// Begins as Python's `random.seed(seed)` of a small number.
    pub(super) fn python(seed: u32) -> Self {
        let mut twister = Self::numpy(19_650_218);
        let state = &mut twister.state;
        let mut at = 1;
        for _ in 0..N {
            let mixed = (state[at - 1] ^ (state[at - 1] >> 30)).wrapping_mul(1_664_525);
            state[at] = (state[at] ^ mixed).wrapping_add(seed);
            at += 1;
            if at >= N {
                state[0] = state[N - 1];
                at = 1;
            }
        }
        for _ in 0..N - 1 {
            let mixed = (state[at - 1] ^ (state[at - 1] >> 30)).wrapping_mul(1_566_083_941);
            let place = clamped(at);
            state[at] = (state[at] ^ mixed).wrapping_sub(place);
            at += 1;
            if at >= N {
                state[0] = state[N - 1];
                at = 1;
            }
        }
        state[0] = 0x8000_0000;
        twister
    }

    fn next(&mut self) -> u32 {
        if self.at >= N {
            for at in 0..N {
                let y = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % N] & 0x7FFF_FFFF);
                let twist = if y & 1 == 0 { 0 } else { 0x9908_B0DF };
                self.state[at] = self.state[(at + M) % N] ^ (y >> 1) ^ twist;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    fn real(&mut self) -> f64 {
        let (a, b) = (self.next() >> 5, self.next() >> 6);
        (f64::from(a) * 67_108_864.0 + f64::from(b)) / 9_007_199_254_740_992.0
    }

    /// Returns a number below `bound`, as Python's `_randbelow`.
    fn below(&mut self, bound: usize) -> usize {
        let bits = usize::BITS - bound.leading_zeros();
        loop {
            let number = index(u64::from(self.next() >> (32 - bits)));
            if number < bound {
                return number;
            }
        }
    }

    /// Returns all numbers below `count` in a drawn order, as `random.sample(range(n), n)`.
    pub(super) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut pool: Vec<usize> = (0..count).collect();
        let mut order = Vec::with_capacity(count);
        for drawn in 0..count {
            let at = self.below(count - drawn);
            order.push(pool[at]);
            pool[at] = pool[count - drawn - 1];
        }
        order
    }

    /// Returns a Poisson number of mean below 10, as NumPy's legacy generator.
    pub(super) fn small_poisson(&mut self, mean: f64) -> u64 {
        let least = (-mean).exp();
        let mut product = self.real();
        let mut number = 0;
        while product > least {
            number += 1;
            product *= self.real();
        }
        number
    }

    /// Returns a Poisson number of mean 10 or more, as NumPy's legacy generator.
    pub(super) fn poisson(&mut self, mean: f64) -> u64 {
        let b = 0.931 + 2.53 * mean.sqrt();
        let a = -0.059 + 0.024_83 * b;
        let invalpha = 1.1239 + 1.1328 / (b - 3.4);
        let vr = 0.9277 - 3.6224 / (b - 2.0);
        loop {
            let u = self.real() - 0.5;
            let v = self.real();
            let us = 0.5 - u.abs();
            let k = ((2.0 * a / us + b) * u + mean + 0.43).floor();
            if us >= 0.07 && v <= vr {
                return whole(k);
            }
            if k < 0.0 || (us < 0.013 && v > us) {
                continue;
            }
            let left = v.ln() + invalpha.ln() - (a / (us * us) + b).ln();
            if left <= -mean + k * mean.ln() - ln_factorial(whole(k)) {
                return whole(k);
            }
        }
    }
}

fn ln_factorial(number: u64) -> f64 {
    (2..=number).map(|factor| float(factor).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_python_and_numpy() {
        // random.seed(1); random.random() == 0.13436424411240122
        assert_eq!(MersenneTwister::python(1).real(), 0.134_364_244_112_401_22);
        // numpy.random.seed(2); numpy.random.random() == 0.43599490214200376
        assert_eq!(MersenneTwister::numpy(2).real(), 0.435_994_902_142_003_76);
    }

    #[test]
    fn an_order_has_each_number_once() {
        let mut order = MersenneTwister::python(7).shuffled(100);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..100));
    }
}
