//! The share of loading rows in the time of a forward pass on the CPU.
//!
//! `cargo run --release --features measure --example loads`

use std::time::Instant;

use msda::cpu::probe;
use msda::rng::Rng;
use msda::{Backend, Buffer, Cpu, Dtype, Inputs, Problem, Spec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for queries in [300, 15422] {
        let problem = Problem::new(Spec {
            batch: 1,
            queries,
            heads: 8,
            channels: 32,
            levels: vec![(92, 160), (46, 80), (23, 40), (12, 20)],
            points: vec![4; 4],
            ..Spec::default()
        })?;
        let mut rng = Rng::new(1);
        // Each query has a place. Around it, each head has a ray of points on every level.
        let mut locations = Vec::with_capacity(problem.locations_len());
        for _ in 0..queries {
            let place = [rng.unit(), rng.unit()];
            for head in 0..problem.heads() {
                let (sin, cos) = (head as f64 * std::f64::consts::TAU / 8.0).sin_cos();
                for level in problem.levels() {
                    for k in 1..=4 {
                        let [x, y] = [cos, sin].map(|t| t * f64::from(k) + rng.normal());
                        locations.push((place[0] + x / level.w as f64) as f32);
                        locations.push((place[1] + y / level.h as f64) as f32);
                    }
                }
            }
        }
        let weights: Vec<f32> = (0..problem.weights_len()).map(|_| rng.unit() as f32).collect();
        // Aligned, as tensors of frameworks are: a row is two cache lines, not parts of three.
        let value = Buffer::filled(Dtype::F32, problem.value_len(), 1.0);
        let inputs = Inputs::plain(value.as_slice(), &locations, &weights);

        let cpu = Cpu::new();
        let mut output = vec![0.0f32; problem.output_len()];
        let mut times = Vec::new();
        for _ in 0..(60_000 / queries).max(7) {
            let start = Instant::now();
            cpu.forward(&problem, &inputs, (&mut output).into())?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let (bytes, rate) = probe::replay(cpu.isa(), &problem, &inputs)?;
        println!(
            "{queries} queries: {:.1} MB of rows; forward {:.3} ms minimum, {:.3} ms median; \
             loading the same rows alone {:.3} ms",
            bytes / 1e6,
            times[0],
            times[times.len() / 2],
            bytes / rate * 1e3
        );
    }
    Ok(())
}
