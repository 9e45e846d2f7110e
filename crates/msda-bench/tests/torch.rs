//! The oracle and the CPU backend agree with torch's grid_sample formulation, option by option.
//!
//! Needs a Python with torch. Without it the test is skipped, unless `MSDA_PYTHON` is set; then it
//! fails.

use msda::rng::Rng;
use msda::{Buffer, Cpu, Dtype, Inputs, Layout, Padding, Problem, Sampling, Spec, Types};
use msda_bench::engines::{Engine, Local, Torch};
use msda_bench::record::{Device, Pass};
use msda_bench::task::Task;
use msda_bench::timing::Effort;
use msda_bench::workload::Workload;

fn torch() -> Option<Torch> {
    match Torch::start(1, Device::Cpu) {
        Ok(torch) => Some(torch),
        Err(why) if std::env::var_os("MSDA_PYTHON").is_some() => panic!("torch does not start: {why:#}"),
        Err(why) => {
            eprintln!("skipped: {why:#}");
            None
        }
    }
}

/// In f64, where only rounding differs. `data` is a number that no other call has.
fn agree(torch: &mut Torch, data: u64, spec: Spec) {
    let p = Problem::new(Spec { types: Types::uniform(Dtype::F64), ..spec }).unwrap();
    let mut r = Rng::new(5);
    // Generated as (B, S, H, D) and packed, so that a ring holds zeros.
    let plain = p.with(|s| s.layout = Layout::Bshd).unwrap();
    let bshd = Buffer::from_fn(Dtype::F64, plain.value_len(), |_| r.normal());
    let mut value = Buffer::filled(Dtype::F64, p.value_len(), f64::NAN);
    msda::pack(&plain, bshd.as_slice(), &p, value.as_mut()).unwrap();
    // Some samples are outside. None is at a tie of nearest sampling or at a jump of a derivative.
    let mut locations = vec![0.0; p.locations_len()];
    let row = 2 * p.samples();
    for item in locations.chunks_exact_mut(row.max(1)) {
        let mut s = 0;
        for (level, &points) in p.levels().iter().zip(p.points()) {
            for _ in 0..points {
                for side in [level.w, level.h] {
                    let (scale, shift) = p.pixel_transform(side);
                    let pixel = r.below(side + 3) as f64 - 2.0 + r.pick(&[0.2, 0.37, 0.61, 0.83]);
                    item[s] = if scale == 0.0 { pixel } else { (pixel - shift) / scale };
                    s += 1;
                }
            }
        }
    }
    let locations = Buffer::from_fn(Dtype::F64, locations.len(), |i| locations[i]);
    let weights = Buffer::from_fn(Dtype::F64, p.weights_len(), |_| r.normal());
    let grad = Buffer::from_fn(Dtype::F64, p.output_len(), |_| r.normal());
    for pass in [Pass::Forward, Pass::Backward] {
        let task = Task {
            data,
            problem: p.clone(),
            inputs: Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice()),
            grad_output: grad.as_slice().into(),
            pass,
            part: None,
        };
        let theirs = torch.run(&task).unwrap();
        for backend in [Box::new(msda::oracle::Oracle) as Box<dyn msda::Backend + Send>, Box::new(Cpu::new())]
        {
            let name = backend.name();
            let ours = Local::new(backend, 2).unwrap().run(&task).unwrap();
            for (i, (a, b)) in ours.0.iter().zip(&theirs.0).enumerate() {
                let (a, b) = (a.to_f64(), b.to_f64());
                assert_eq!(a.len(), b.len());
                let size = b.iter().fold(1.0f64, |m, x| m.max(x.abs()));
                let worst = a.iter().zip(&b).fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
                assert!(worst <= 1e-12 * size, "{p} {pass} result {i}: {name} is {worst:e} from torch");
            }
        }
    }
}

#[test]
fn every_option_agrees_with_grid_sample() {
    let Some(mut torch) = torch() else { return };
    let mut data = 0;
    for sampling in [Sampling::Bilinear, Sampling::Nearest] {
        for padding in [Padding::Zeros, Padding::Border] {
            for align_corners in [false, true] {
                for layout in Layout::ALL {
                    let spec = Spec {
                        batch: 2,
                        queries: 11,
                        heads: 3,
                        channels: 5,
                        levels: vec![(7, 9), (4, 3), (2, 2)],
                        points: vec![4, 1, 3],
                        sampling,
                        padding,
                        align_corners,
                        layout,
                        ..Spec::default()
                    };
                    data += 1;
                    agree(&mut torch, data, spec);
                }
            }
        }
    }
}

/// On the GPU host time is hidden by a delay and reported apart; on the processor there is none.
#[test]
fn host_time_is_told_apart_from_gpu_time() {
    let Some(mut torch) = torch() else { return };
    let data = Workload::find("small").unwrap().data(Dtype::F32).unwrap();
    for pass in [Pass::Forward, Pass::Backward] {
        let task = Task::whole(&data, pass);
        assert!(torch.time(&task, Effort::QUICK).unwrap().iter().all(|&ms| ms > 0.0));
        assert_eq!(torch.launching(&task).host_us, None);
        if !torch.finds_cuda() {
            eprintln!("skipped: torch finds no CUDA device to time {pass} on");
            continue;
        }
        let mut cuda = Torch::start(1, Device::Cuda).unwrap();
        let mut times = cuda.time(&task, Effort::QUICK).unwrap();
        times.sort_by(f64::total_cmp);
        let (gpu_us, host_us) = (times[times.len() / 2] * 1e3, cuda.launching(&task).host_us.unwrap());
        assert!(gpu_us > 0.0 && host_us > 0.0, "{pass}: {gpu_us} us, host {host_us} us");
    }
}
