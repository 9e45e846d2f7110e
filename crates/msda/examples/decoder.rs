//! Cross-attention of a decoder layer, forward and backward.
//!
//! `cargo run --release --example decoder`

use msda::rng::Rng;
use msda::{Backend, Cpu, Gradients, Inputs, Problem, ReferenceKind, Spec};

fn main() -> Result<(), msda::Error> {
    // 300 object queries look at three feature maps of one image, 8 heads of 32
    // channels, 4 points per level.
    let problem = Problem::new(Spec {
        batch: 1,
        queries: 300,
        heads: 8,
        channels: 32,
        levels: vec![(80, 80), (40, 40), (20, 20)],
        points: vec![4, 4, 4],
        ..Spec::default()
    })?;
    println!("{problem}");

    let mut rng = Rng::new(1);
    let mut random =
        |n: usize, scale: f64| -> Vec<f32> { (0..n).map(|_| (rng.normal() * scale) as f32).collect() };
    let value = random(problem.value_len(), 1.0);
    let offsets = random(problem.locations_len(), 2.0);
    let logits = random(problem.weights_len(), 1.0);
    let boxes: Vec<f32> = (0..problem.reference_len(4)).map(|i| [0.5, 0.4, 0.2, 0.3][i % 4]).collect();

    // The fused form takes reference boxes, raw offsets and raw logits, as a model's linear layers
    // compute them.
    let inputs = Inputs::fused(&value, ReferenceKind::Box, &boxes, &offsets, &logits);
    let cpu = Cpu::new();
    let mut output = vec![0.0f32; problem.output_len()];
    cpu.forward(&problem, &inputs, (&mut output).into())?;
    println!("{}: output[0..4] = {:?}", cpu.name(), &output[..4]);

    // Only the gradients that have a destination are computed.
    let upstream = vec![1.0f32; problem.output_len()];
    let mut grad_value = vec![0.0f32; problem.value_len()];
    let mut grad_boxes = vec![0.0f32; problem.reference_len(4)];
    let gradients = Gradients {
        value: Some((&mut grad_value).into()),
        reference: Some((&mut grad_boxes).into()),
        ..Gradients::default()
    };
    cpu.backward(&problem, &inputs, (&upstream).into(), gradients)?;
    println!("gradient of the first box on the finest level: {:?}", &grad_boxes[..4]);
    Ok(())
}
