//! Conversions to and from 16-bit types, against the definition of the types: all 65,536 patterns,
//! all ties between neighbours, subnormals, and overflow. First the scalar conversions, then those
//! of each instruction set, through the operator.

mod common;

use common::sized;
use msda::{Backend, Cpu, Dtype, Element, Inputs, Isa, Problem, Sampling, Spec, Types, bf16, f16};

/// A 16-bit floating-point format.
#[derive(Clone, Copy)]
struct Format {
    dtype: Dtype,
    /// Bits of the fraction.
    fraction: u32,
    /// Bits of the exponent.
    exponent: u32,
}

const F16: Format = Format { dtype: Dtype::F16, fraction: 10, exponent: 5 };
const BF16: Format = Format { dtype: Dtype::Bf16, fraction: 7, exponent: 8 };

impl Format {
    /// The number of a pattern, by the definition.
    fn number(self, bits: u16) -> f64 {
        let fraction = f64::from(bits & ((1 << self.fraction) - 1)) / f64::from(1u32 << self.fraction);
        let exponent = u32::from(bits >> self.fraction) & ((1 << self.exponent) - 1);
        let bias = (1i32 << (self.exponent - 1)) - 1;
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            e if e == (1 << self.exponent) - 1 => {
                if fraction == 0.0 {
                    f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => (1.0 + fraction) * 2f64.powi(e as i32 - bias),
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    /// The first pattern that is not a finite positive number: infinity.
    fn infinity(self) -> u16 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// Numbers with the pattern that each must round to: each number, and between each two
    /// neighbours the midpoint and the two `f32` numbers next to it. Positive ones only.
    fn roundings(self) -> Vec<(f32, u16)> {
        let mut all = Vec::new();
        for bits in 0..self.infinity() {
            let low = self.number(bits);
            // The number after the largest one would be the power of two that infinity replaces.
            let high = if bits + 1 == self.infinity() {
                2f64.powi(1 << (self.exponent - 1))
            } else {
                self.number(bits + 1)
            };
            let middle = ((low + high) / 2.0) as f32;
            assert_eq!(f64::from(middle), (low + high) / 2.0, "midpoints are exact in f32");
            let even = bits + bits % 2;
            all.extend([(low as f32, bits), (middle, even)]);
            all.extend([(middle.next_down(), bits), (middle.next_up(), bits + 1)]);
        }
        all.extend([(f32::MAX, self.infinity()), (f32::INFINITY, self.infinity())]);
        all
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn widening<T: Element>(format: Format, from_bits: fn(u16) -> T) {
    for bits in 0..=u16::MAX {
        let (got, want) = (from_bits(bits), format.number(bits));
        assert!(same(got.to_f64(), want), "{} {bits:#06x} to f64: {}", format.dtype, got.to_f64());
        let wide = msda::Float::to_f64(got.widen());
        assert!(same(wide, want), "{} {bits:#06x} to f32: {wide}", format.dtype);
    }
}

#[test]
fn all_patterns_widen_to_their_numbers() {
    widening(F16, f16::from_bits);
    widening(BF16, bf16::from_bits);
}

fn narrowing<T: Element<Acc = f32>>(format: Format, to_bits: fn(T) -> u16) {
    for (x, bits) in format.roundings() {
        for (x, bits) in [(x, bits), (-x, bits | 0x8000)] {
            let got = to_bits(T::narrow(x));
            assert_eq!(got, bits, "{x:e} to {} gives {got:#06x}, not {bits:#06x}", format.dtype);
            let got = to_bits(<T as Element>::from_f64(f64::from(x)));
            assert_eq!(got, bits, "{x:e} from f64 to {} gives {got:#06x}", format.dtype);
        }
    }
    for bits in 0..format.infinity() {
        // Next to the midpoint in f64: a rounding to f32 first would move it onto the tie.
        let middle = (format.number(bits) + format.number(bits + 1)) / 2.0;
        if middle.is_finite() {
            let got = [middle.next_down(), middle.next_up()].map(|x| to_bits(<T as Element>::from_f64(x)));
            assert_eq!(got, [bits, bits + 1], "around {middle:e}");
        }
    }
    assert!(T::narrow(f32::NAN).to_f64().is_nan());
}

#[test]
fn numbers_round_to_the_nearest_and_ties_to_even() {
    narrowing(F16, f16::to_bits);
    narrowing(BF16, bf16::to_bits);
}

#[test]
fn the_limit_of_overflow_is_where_rounding_gives_infinity() {
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
        let round = |x: f64| msda::Buffer::filled(dtype, 1, x).to_f64()[0];
        let limit = dtype.overflow();
        assert!(round(limit).is_infinite() && round(limit.next_down()).is_finite(), "{dtype} {limit:e}");
    }
    assert_eq!(Dtype::F16.overflow(), 65520.0);
}

/// One pixel, `channels` channels and one sample per query, which reads it with its weight.
fn one_pixel(queries: usize, channels: usize, dtype: Dtype) -> Problem {
    let (sampling, types) = (Sampling::Nearest, Types::with_value(dtype));
    Problem::new(Spec { sampling, types, ..sized([1, queries, 1, channels], &[(1, 1)], &[1]) }).unwrap()
}

#[test]
fn each_instruction_set_loads_all_patterns() {
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(isa).unwrap();
        for format in [F16, BF16] {
            // All patterns in one row, and in rows whose last elements do not fill a register.
            for channels in [1 << 16, 13] {
                let p = one_pixel(1, channels, format.dtype);
                for first in (0..1u32 << 16).step_by(channels) {
                    let patterns: Vec<u16> = (0..channels as u32).map(|c| (first + c) as u16).collect();
                    let bytes: Vec<u8> = patterns.iter().flat_map(|b| b.to_le_bytes()).collect();
                    let value = msda::Buffer::from_le_bytes(format.dtype, &bytes);
                    let inputs = Inputs::plain(&value, &[0.5f32, 0.5], &[1.0f32]);
                    let output = cpu.output(&p, &inputs).unwrap();
                    for (bits, got) in patterns.iter().zip(output.to_f64()) {
                        let want = format.number(*bits);
                        // The sum starts at +0, so the sign of -0 is lost.
                        let equal = got == want || got.is_nan() && want.is_nan();
                        assert!(equal, "{isa} {} {bits:#06x}: got {got:e}", format.dtype);
                    }
                }
            }
        }
    }
}

#[test]
fn each_instruction_set_rounds_what_it_stores() {
    for isa in Isa::available() {
        let cpu = Cpu::with_isa(isa).unwrap();
        for format in [F16, BF16] {
            let roundings = format.roundings();
            let weights: Vec<f32> = roundings.iter().map(|(x, _)| *x).collect();
            for (channels, sign) in [(1, 1.0), (16, -1.0), (37, 1.0)] {
                // A register of channels needs fewer of the numbers to be fast enough.
                let step = if channels == 1 { 1 } else { 7 };
                let weights: Vec<f32> = weights.iter().copied().step_by(step).collect();
                let p = one_pixel(weights.len(), channels, format.dtype);
                let value = msda::Buffer::filled(format.dtype, channels, sign);
                let locations = vec![0.5f32; p.locations_len()];
                let inputs = Inputs::plain(&value, &locations, &weights);
                let output = cpu.output(&p, &inputs).unwrap().to_f64();
                for (row, (x, bits)) in output.chunks(channels).zip(roundings.iter().step_by(step)) {
                    let want = sign * format.number(*bits);
                    assert!(
                        row.iter().all(|got| *got == want),
                        "{isa} {}: {x:e} gives {row:?}, not {want:e}",
                        format.dtype
                    );
                }
            }
        }
    }
}
