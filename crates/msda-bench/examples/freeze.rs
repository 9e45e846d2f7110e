//! What a redesign of the kernels or of their choice must not change: a line for each of 40,000
//! random requests with the kernels that it gets, and on a GPU a line with hashes of the results
//! for each of 500 random calls and for every workload.
//!
//! `cargo xtask freeze` writes the lines to a file; `cargo xtask freeze OLD` compares them.

use std::io::Write;

use anyhow::Result;
use msda::rng::Rng;
use msda::{
    Backend, Buffer, Dtype, Inputs, Padding, Problem, Reference, ReferenceKind, Role, Sampling, Spec, Types,
    View,
};
use msda_bench::engines::Registry;
use msda_bench::record::Pass as Timed;
use msda_bench::task::Task;
use msda_bench::workload::{BUILT_IN, Workload};
use msda_cuda::choose::choose;
use msda_cuda::driver::Device;
use msda_cuda::kernels::Action;
use msda_cuda::{ARCHITECTURES, Cuda, Levels, Operands, Pass, Request, Slot, Target, Wanted};

const REQUESTS: u64 = 40_000;
const CALLS: u64 = 500;
const FORMS: [Option<ReferenceKind>; 3] = [None, Some(ReferenceKind::Point), Some(ReferenceKind::Box)];

fn main() -> Result<()> {
    let out = &mut std::io::BufWriter::new(std::io::stdout().lock());
    for i in 0..REQUESTS {
        writeln!(out, "request {i}: {}", request(&mut Rng::new(i)))?;
    }
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(why) => {
            eprintln!("skipped {CALLS} calls and all workloads: {why}");
            return Ok(());
        }
    };
    for i in 0..CALLS {
        writeln!(out, "call {i}: {}", call(&Cuda::new(&device), &mut Rng::new(1 << 32 | i))?)?;
    }
    let mut engine = Registry::default().open("cuda", 1)?;
    for (name, _) in BUILT_IN {
        let workload = Workload::find(name)?;
        for &dtype in &workload.dtypes {
            let data = workload.data(dtype)?;
            for pass in [Timed::Forward, Timed::Backward] {
                let results = engine.run(&Task::whole(&data, pass))?;
                writeln!(out, "workload {name} {dtype} {pass}: {}", hashes(&results.0))?;
            }
        }
    }
    Ok(())
}

/// A small problem, or one as large as those of models.
fn problem(r: &mut Rng, small: bool) -> Problem {
    let most = if small { 24 } else { 160 };
    let levels: Vec<_> = (0..1 + r.below(5)).map(|_| (1 + r.below(most), 1 + r.below(most))).collect();
    let positions: usize = levels.iter().map(|(h, w)| h * w).sum();
    let points = 1 + r.below(8);
    let value = r.pick(&Dtype::ALL);
    let other = if value == Dtype::F64 { value } else { r.pick(&[value, Dtype::F32]) };
    let spec = Spec {
        batch: 1 + r.below(if small { 3 } else { 16 }),
        queries: if small { r.below(400) } else { r.pick(&[100, 300, 900, 2500, positions, 40_000]) },
        heads: r.pick(&[1, 2, 3, 4, 6, 8, 12, 16]),
        channels: r.pick(&[1, 3, 8, 16, 20, 24, 32, 32, 32, 33, 36, 48, 64, 80, 100, 128, 256]),
        // Some have another number on each level, or none.
        points: levels.iter().map(|_| if points < 7 { points } else { r.below(7) }).collect(),
        levels,
        sampling: r.pick(&[Sampling::Bilinear, Sampling::Bilinear, Sampling::Bilinear, Sampling::Nearest]),
        padding: r.pick(&[Padding::Zeros, Padding::Zeros, Padding::Zeros, Padding::Border]),
        align_corners: r.below(8) == 0,
        types: Types { value, locations: other, weights: other },
        ..Spec::default()
    };
    Problem::new(spec).expect("the sizes are legal")
}

/// Strides of a dense tensor, of one with gaps between rows, or of a value with exchanged
/// dimensions.
fn strides(r: &mut Rng, role: Role, p: &Problem) -> [usize; 3] {
    let ([_, n, inner], row) = role.shape(p);
    let gap = [1, 8, 32][r.below(3)];
    match r.below(4) {
        0 => [n * inner * (row + gap), inner * (row + gap), row + gap],
        1 if matches!(role, Role::Value) => [n * inner * row, row, n * row],
        _ => [n * inner * row, inner * row, row],
    }
}

/// A request, and the kernels that it gets or why it gets none.
fn request(r: &mut Rng) -> String {
    let small = r.below(4) == 0;
    let p = problem(r, small);
    let form = r.pick(&FORMS);
    let [value, locations, weights, reference] = [(); 4].map(|()| r.below(4) > 0);
    let wanted = Wanted { value, locations, weights, reference: reference && form.is_some() };
    let pass = if r.below(2) == 0 { Pass::Forward } else { Pass::Backward(wanted) };
    let mut operands = Operands::for_pass(&p, form, pass);
    for slot in Slot::ALL.into_iter().filter(|&slot| pass.uses(slot)) {
        if let (Some(role), Some(dtype)) = (slot.role(form), slot.dtype(&p)) {
            operands[slot].strides = strides(r, role, &p);
            operands[slot].align = r.pick(&[256, 256, 16, dtype.size()]);
        }
    }
    let hidden = Levels::hidden(&p).expect("placeholders are legal");
    let (p, levels) = if r.below(5) == 0 { (&hidden, Levels::Device) } else { (&p, Levels::Host) };
    let target = Target::of_arch(r.pick(&ARCHITECTURES).0).expect("it is listed");
    let request = Request { pass, levels, ..Request::new(p, &operands) };
    let got = match choose(&request, &target) {
        Err(why) => why.to_string().replace('\n', " "),
        Ok(choice) => {
            let plan = choice.kernel.prepare(&request, &target);
            let keys = plan.stages.iter().map(|stage| match &stage.action {
                Action::Run(run) => run.unit.key.as_str(),
                Action::Clear(_) => "clear",
            });
            let keys = keys.collect::<Vec<_>>().join(" ");
            format!("{}, {} bytes, {keys}", choice.kernel, plan.arena.bytes())
        }
    };
    format!("{} {p} {form:?} {pass:?} {levels:?}: {got}", target.arch)
}

/// A call, and the hashes of its output and its gradients.
fn call(cuda: &Cuda, r: &mut Rng) -> Result<String> {
    let p = problem(r, true);
    let form = r.pick(&FORMS);
    let t = p.types();
    let mut tensor = |role: Role, dtype: Dtype, low: f64, high: f64| {
        let strides = strides(r, role, &p);
        let (outer, row) = role.shape(&p);
        let len = if outer.contains(&0) { 0 } else { strides[0] * outer[0] + row };
        (Buffer::from_fn(dtype, len, |_| r.between(low, high)), strides)
    };
    let (low, high) = if form.is_some() { (-3.0, 3.0) } else { (-0.2, 1.2) };
    let value = tensor(Role::Value, t.value, -1.0, 1.0);
    let locations = tensor(Role::Locations, t.locations, low, high);
    let weights = tensor(Role::Weights, t.weights, -1.0, 1.0);
    let reference = form.map(|kind| (kind, tensor(Role::Reference(kind), t.locations, 0.0, 1.0)));
    let grad = tensor(Role::Output, t.value, -1.0, 1.0);
    let inputs = Inputs {
        reference: reference.as_ref().map(|(kind, tensor)| Reference { kind: *kind, view: view(tensor) }),
        ..Inputs::plain(view(&value), view(&locations), view(&weights))
    };
    let output = cuda.output(&p, &inputs)?;
    let gradients = cuda.gradients(&p, &inputs, view(&grad))?;
    let results = [output, gradients.value, gradients.locations, gradients.weights];
    let results: Vec<Buffer> = results.into_iter().chain(gradients.reference).collect();
    Ok(format!("{p} {form:?}: {}", hashes(&results)))
}

fn view((buffer, strides): &(Buffer, [usize; 3])) -> View<'_> {
    View::from(buffer.as_slice()).strided(*strides)
}

fn hashes(results: &[Buffer]) -> String {
    let hash = |result: &Buffer| blake3::hash(&result.to_le_bytes()).to_hex()[..16].to_owned();
    results.iter().map(hash).collect::<Vec<_>>().join(" ")
}
