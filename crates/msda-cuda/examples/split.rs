//! The operator on several devices: all that are there, or the first one twice.
//!
//! ```sh
//! cargo run --release -p msda-cuda --example split
//! ```

use msda::{Buffer, Dtype, Inputs, Problem, Result, Spec};
use msda_cuda::Split;
use msda_cuda::driver::Device;

fn main() -> Result<()> {
    let mut devices = match Device::count() {
        Ok(count) => (0..count).map(Device::open).collect::<Result<Vec<_>>>()?,
        Err(why) => {
            println!("there is no GPU to run on: {why}");
            return Ok(());
        }
    };
    if let [only] = &devices[..] {
        devices = vec![only.clone(); 2];
    }
    let problem = Problem::new(Spec {
        batch: 4,
        queries: 300,
        heads: 8,
        channels: 32,
        levels: vec![(80, 80), (40, 40), (20, 20)],
        points: vec![4; 3],
        ..Spec::default()
    })?;
    let value = Buffer::filled(Dtype::F32, problem.value_len(), 2.0);
    let locations = Buffer::filled(Dtype::F32, problem.locations_len(), 0.5);
    let weights = Buffer::filled(Dtype::F32, problem.weights_len(), 1.0 / problem.samples() as f64);
    let mut output = Buffer::filled(Dtype::F32, problem.output_len(), 0.0);

    let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    Split::new(&devices)?.run(&problem, &inputs, output.as_mut().into())?;

    assert!(output.to_f64().iter().all(|x| (x - 2.0).abs() < 1e-5), "every weighted mean of 2 is 2");
    println!("{problem} on {} parts: {} outputs, all 2", devices.len(), output.len());
    Ok(())
}
