//! The op on tensors that are on the device: a plan made once, launched many times. Prints what
//! each step costs.
//!
//! ```sh
//! cargo run --release -p msda-cuda --example plan
//! ```
#![allow(unsafe_code)]

use std::time::Instant;

use msda::{Buffer, Dtype, Problem, Result, Spec, Types};
use msda_cuda::driver::{Device, Memory};
use msda_cuda::{Addresses, Operands, Plan, Request, Slot, jit};

fn main() -> Result<()> {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(why) => {
            println!("there is no GPU to run on: {why}");
            return Ok(());
        }
    };
    let problem = Problem::new(Spec {
        batch: 4,
        queries: 300,
        heads: 8,
        channels: 32,
        levels: vec![(100, 167), (50, 84), (25, 42), (13, 21)],
        points: vec![4; 4],
        types: Types::uniform(Dtype::F16),
        ..Spec::default()
    })?;

    // Tensors in device memory: a framework's, or ours as here.
    let upload = |len: usize, x: f64| -> Result<Memory> {
        let bytes = Buffer::filled(Dtype::F16, len, x).to_le_bytes();
        let mut memory = device.alloc(bytes.len())?;
        memory.write(0, &bytes)?;
        Ok(memory)
    };
    let value = upload(problem.value_len(), 2.0)?;
    let locations = upload(problem.locations_len(), 0.5)?;
    let weights = upload(problem.weights_len(), 1.0 / problem.samples() as f64)?;
    let output = upload(problem.output_len(), 0.0)?;

    // The kernel is chosen, and compiled if no cache has it.
    let operands = Operands::dense(&problem, None);
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let plan = Plan::new(&device, &Request::new(&problem, &operands))?;
    println!("{}\n  because: {}", plan.choice().kernel, plan.choice().why);
    println!("first plan     {:8.3} ms", milliseconds(start));
    let start = Instant::now();
    drop(Plan::new(&device, &Request::new(&problem, &operands))?);
    println!("the same again {:8.3} ms", milliseconds(start));
    let request = Request::new(&problem, &operands);
    let prepared = plan.choice().kernel.prepare(&request, &msda_cuda::Target::of(&device));
    let start = Instant::now();
    match prepared.kernels().try_for_each(|kernel| jit::compile(&kernel.unit).map(drop)) {
        Ok(()) => println!("compiling it   {:8.3} ms, by {}", milliseconds(start), jit::nvrtc()?.path()),
        Err(why) => println!("no compiler, but the cache had it: {why}"),
    }

    // Launching allocates nothing and waits for nothing.
    let workspace = device.alloc(plan.workspace())?;
    let at = Addresses::from([
        (Slot::Value, value.address()),
        (Slot::Locations, locations.address()),
        (Slot::Weights, weights.address()),
        (Slot::Output, output.address()),
        (Slot::Workspace, workspace.address()),
    ]);
    let stream = device.stream()?;
    let _bound = device.bind()?;
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..100 {
            // SAFETY: the tensors are dense, of the problem, and live until the stream is done.
            unsafe { plan.launch(&at, stream.handle())? };
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / 100.0);
        stream.synchronize()?;
    }
    println!("a launch       {best:8.3} us of the host's time");

    let mut bytes = vec![0; output.len()];
    output.read(0, &mut bytes)?;
    let result = Buffer::from_le_bytes(Dtype::F16, &bytes).to_f64();
    assert!(result.iter().all(|x| (x - 2.0).abs() < 1e-2), "every weighted mean of 2 is 2");
    println!("{} outputs, all 2", result.len());
    Ok(())
}
