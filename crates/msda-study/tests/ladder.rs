//! The ladder on a GPU: every exact rung through the battery, the others within what they promise.

#[path = "../../msda-cuda/tests/common/mod.rs"]
mod common;

use msda::rng::Rng;
use msda::{Backend, Buffer, Cpu, Dtype, Inputs, Layout, Problem, Result, Spec, Types, pack};
use msda_cuda::{Cuda, Operands, Request, Target};
use msda_study::ladder::{self, Rung};
use msda_study::verify::battery;

use common::{device, groups, named_groups};

/// The rungs, exact ones or others; of them those that `MSDA_RUNGS` names, if it names some: a
/// sanitizer takes its time.
fn rungs(exact: bool) -> impl Iterator<Item = &'static Rung> {
    let named = std::env::var("MSDA_RUNGS").unwrap_or_default();
    let wanted = move |rung: &&Rung| named.is_empty() || named.split(',').any(|name| name == rung.name);
    ladder::RUNGS.iter().filter(move |rung| rung.kernel().is_exact() == exact).filter(wanted)
}

#[test]
fn every_exact_rung_conforms() {
    let Some(device) = device() else { return };
    let mut wrong = Vec::new();
    for b in battery(&device, &rungs(true).collect::<Vec<_>>(), &groups(), &|_| ()) {
        let name = &b.rung;
        let wrong_cases = &b.summary.failed;
        eprintln!(
            "{name}: took {} cases, {} wrong, err/tol {:.2}",
            b.taken,
            wrong_cases.len(),
            b.summary.worst
        );
        if b.taken < 20 && named_groups().is_empty() {
            wrong.push(format!("{name} took only {} cases", b.taken));
        }
        wrong.extend(wrong_cases.iter().take(5).map(|why| format!("{name}: {why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A call whose weights add up to at most 1, and whose values are of at least a quarter, at most 1,
/// and either sign.
fn call(channels: usize, layout: Layout, dtype: Dtype) -> (Problem, [Buffer; 3]) {
    let p = Problem::new(Spec {
        batch: 2,
        queries: 300,
        heads: 3,
        channels,
        levels: vec![(20, 30), (10, 15), (5, 8)],
        points: vec![4, 3, 5],
        layout,
        types: Types::uniform(dtype),
        ..Spec::default()
    })
    .unwrap();
    let mut rng = Rng::new(11);
    let value = |i| if i % 2 == 0 { 1.0 } else { -1.0 };
    let value = Buffer::from_fn(dtype, p.value_len(), |i| value(i) * (0.25 + 0.75 * rng.unit()));
    let locations = Buffer::from_fn(dtype, p.locations_len(), |_| rng.unit() * 1.1 - 0.05);
    let weights = Buffer::from_fn(dtype, p.weights_len(), |_| rng.unit() / p.samples() as f64);
    (p, [value, locations, weights])
}

fn forward(backend: &dyn Backend, p: &Problem, [value, locations, weights]: &[Buffer; 3]) -> Result<Buffer> {
    let mut output = Buffer::filled(p.types().value, p.output_len(), f64::NAN);
    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    backend.forward(p, &inputs, output.as_mut().into())?;
    Ok(output)
}

/// What a rung may be off by, for an output whose taps add up to `sum` where none is negative.
fn allowed(rung: &Rung, sum: f64) -> f64 {
    let own = match rung.name.as_str() {
        // Half a step of the largest value, for weights that add up to 1.
        "int8" => 1.0 / 254.0,
        // The same, and interpolation weights and sums of four taps are rounded to eleven bits.
        "int8_half" | "persistent+int8" => 1.0 / 254.0 + sum / 256.0,
        // Half a step of three bits of fraction.
        "fp8" => sum / 16.0,
        // Distances of eight bits on both axes.
        "texture" | "persistent+texture" => 1.0 / 128.0,
        // It is compared with the same samples; the expected weights are rounded to the type.
        "fewer_points" => sum / 256.0,
        // Weights, and each sum of 12 samples' taps, are rounded to eleven bits.
        name if name.contains("half") && name != "base+half" => sum * 49.0 / 2048.0,
        name if name.starts_with("original_f16") || name == "distributed_fixed" => sum * 49.0 / 2048.0,
        // Weights, and each sum of four taps, are.
        _ => sum / 256.0,
    };
    // The output is rounded too.
    own + sum / 256.0
}

/// The weights of `fewer_points`: less than a quarter of the query's mean becomes 0, and the others
/// are scaled so that their sum stays.
fn without_light_samples(p: &Problem, weights: &Buffer) -> Buffer {
    let mut all: Vec<f32> = weights.to_f64().iter().map(|&w| w as f32).collect();
    for query in all.chunks_mut(p.samples()) {
        let total = query.iter().fold(0.0, |sum: f32, w| sum + w);
        let least = total / (4 * p.samples()) as f32;
        let kept = query.iter().filter(|w| **w >= least).fold(0.0, |sum: f32, w| sum + w);
        query.iter_mut().for_each(|w| *w = if *w < least { 0.0 } else { *w * (total / kept) });
    }
    Buffer::from_fn(weights.dtype(), all.len(), |i| f64::from(all[i]))
}

#[test]
fn light_samples_are_dropped_and_the_sum_stays() {
    let (p, [_, _, weights]) = call(8, Layout::Bshd, Dtype::F32);
    let fewer = without_light_samples(&p, &weights).to_f64();
    let (before, all) = (weights.to_f64(), p.samples());
    let dropped = fewer.iter().filter(|w| **w == 0.0).count();
    assert!(dropped * 20 > fewer.len() && dropped * 4 < fewer.len(), "{dropped} of {}", fewer.len());
    for (a, b) in before.chunks(all).zip(fewer.chunks(all)) {
        let (a, b) = (a.iter().sum::<f64>(), b.iter().sum::<f64>());
        assert!((a - b).abs() < 1e-6 * a, "{a} {b}");
    }
}

#[test]
fn other_rungs_keep_what_they_promise() {
    let Some(device) = device() else { return };
    let target = Target::of(&device);
    for rung in rungs(false) {
        let mut taken = 0;
        for (channels, layout, dtype) in [
            (32, Layout::PlanarRing, Dtype::F16),
            (32, Layout::Bshd, Dtype::F16),
            (24, Layout::Planar, Dtype::Bf16),
            (5, Layout::Bshd, Dtype::F32),
            (64, Layout::PlanarRing, Dtype::F32),
        ] {
            let (p, mut inputs) = call(channels, layout, dtype);
            // Rings are zeros.
            if layout == Layout::PlanarRing {
                let (bare, [value, ..]) = call(channels, Layout::Planar, dtype);
                pack(&bare, value.as_slice(), &p, inputs[0].as_mut()).unwrap();
            }
            let operands = Operands::dense(&p, None);
            let kernel = rung.kernel();
            if kernel.refuses(&Request::new(&p, &operands), &target).is_some() {
                continue;
            }
            taken += 1;
            let backend = Cuda::with_pick(&device, &rung.name, move |_| Some(kernel));
            let got = forward(&backend, &p, &inputs).unwrap();
            let again = forward(&backend, &p, &inputs).unwrap();
            assert_eq!(got.to_le_bytes(), again.to_le_bytes(), "{} on {p}: another result", rung.name);
            if rung.name == "fewer_points" {
                inputs[2] = without_light_samples(&p, &inputs[2]);
            }
            let want = forward(&Cpu::new(), &p, &inputs).unwrap().to_f64();
            let sizes = inputs[0].to_f64().into_iter().map(f64::abs).collect::<Vec<_>>();
            inputs[0] = Buffer::from_fn(dtype, sizes.len(), |i| sizes[i]);
            let sums = forward(&Cpu::new(), &p, &inputs).unwrap().to_f64();
            for (i, ((got, want), sum)) in got.to_f64().iter().zip(&want).zip(&sums).enumerate() {
                let most = allowed(rung, *sum);
                assert!(
                    (got - want).abs() <= most,
                    "{} on {p}, element {i}: got {got}, expected {want} within {most}",
                    rung.name
                );
            }
        }
        eprintln!("{}: took {taken} calls", rung.name);
    }
}
