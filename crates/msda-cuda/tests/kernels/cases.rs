//! The kernels to compile: those of the workloads, and every option at least once.

use msda::{Dtype, Layout, Padding, Problem, ReferenceKind, Role, Sampling, Spec, Types};
use msda_cuda::choose::choose;
use msda_cuda::driver::Arch;
use msda_cuda::kernels::{Call, Kernel, Prepared, order_first, pack};
use msda_cuda::{Levels, Operand, Operands, Pass, Request, Scatter, Sizes, Slot, Sums, Target, Wanted};

use super::harness::{Case, FULL, SMS, Weight};

/// A request with a name.
struct Asked {
    name: String,
    weight: Weight,
    problem: Problem,
    pass: Pass,
    operands: Operands,
    levels: Levels,
    sums: Sums,
    sizes: Sizes,
    scatter: Scatter,
    /// This kernel instead of the chosen one.
    kernel: Option<Kernel>,
}

impl Asked {
    fn new(name: impl Into<String>, weight: Weight, spec: Spec) -> Self {
        let problem = Problem::new(spec).unwrap();
        let operands = Operands::dense(&problem, None);
        Self {
            name: name.into(),
            weight,
            problem,
            pass: Pass::Forward,
            operands,
            levels: Levels::Host,
            sums: Sums::F32,
            sizes: Sizes::Any,
            scatter: Scatter::Ordered,
            kernel: None,
        }
    }

    /// All gradients; in the fused form with a kind of reference points.
    fn backward(self, kind: Option<ReferenceKind>) -> Self {
        let reference = kind.is_some();
        let pass = Pass::Backward(Wanted { value: true, locations: true, weights: true, reference });
        let operands = Operands::for_pass(&self.problem, kind, pass);
        Self { pass, operands, ..self }
    }

    fn change(mut self, change: impl FnOnce(&mut Operands, &Problem)) -> Self {
        change(&mut self.operands, &self.problem);
        self
    }

    fn fused(self, kind: ReferenceKind) -> Self {
        self.change(|operands, problem| *operands = Operands::dense(problem, Some(kind)))
    }

    fn kernel(self, kernel: &str) -> Self {
        Self { kernel: Some(kernel.parse().unwrap()), ..self }
    }

    /// The last kernel of a forward pass; all kernels of a backward pass.
    fn cases(&self, target: &Target) -> Vec<Case> {
        let Self { pass, levels, sums, sizes, scatter, .. } = *self;
        let request =
            Request { pass, levels, sums, sizes, scatter, ..Request::new(&self.problem, &self.operands) };
        let kernel = self.kernel.unwrap_or_else(|| choose(&request, target).unwrap().kernel);
        let call = kernel.prepare(&request, target);
        if pass == Pass::Forward {
            return vec![Case::new(self.name.clone(), self.weight, call.last().unwrap())];
        }
        let name = |entry: &str| {
            let stage = entry.trim_start_matches("msda_").trim_start_matches("backward_");
            format!("{}-{}", self.name, stage.replace('_', "-"))
        };
        call.kernels().map(|kernel| Case::new(name(kernel.entry), self.weight, kernel)).collect()
    }
}

/// All cases for an architecture.
pub(crate) fn cases(arch: Arch) -> Vec<Case> {
    let target = Target { arch, sms: SMS };
    let asked = [workloads(), options(), gradients()];
    let mut all: Vec<_> = asked.iter().flatten().flat_map(|asked| asked.cases(&target)).collect();
    all.extend(helpers(&target));
    all.retain(|case| case.weight != Weight::Once || arch == FULL);
    all
}

/// A case by name.
pub(crate) fn case(name: &str, arch: Arch) -> Case {
    cases(arch).into_iter().find(|case| case.name == name).unwrap()
}

fn spec(batch: usize, queries: usize, [heads, channels]: [usize; 2], levels: &[(usize, usize)]) -> Spec {
    Spec { batch, queries, heads, channels, levels: levels.to_vec(), ..Spec::default() }
}

/// With the same number of points on each level.
fn points(spec: Spec, points: usize) -> Spec {
    Spec { points: vec![points; spec.levels.len()], ..spec }
}

fn encoder() -> Spec {
    let levels = [(100, 167), (50, 84), (25, 42), (13, 21)];
    let pixels = levels.iter().map(|(h, w)| h * w).sum();
    points(spec(4, pixels, [8, 32], &levels), 4)
}

fn five_levels() -> Spec {
    let levels = [(200, 334), (100, 167), (50, 84), (25, 42), (13, 21)];
    let pixels = levels.iter().map(|(h, w)| h * w).sum();
    points(spec(2, pixels, [8, 32], &levels), 4)
}

fn small_encoder() -> Spec {
    let levels = [(48, 48), (24, 24), (12, 12)];
    let pixels = levels.iter().map(|(h, w)| h * w).sum();
    points(spec(1, pixels, [8, 32], &levels), 4)
}

fn decoder() -> Spec {
    Spec { queries: 300, ..encoder() }
}

fn rt_detr() -> Spec {
    points(spec(16, 300, [8, 32], &[(80, 80), (40, 40), (20, 20)]), 4)
}

fn seed() -> Spec {
    let levels = [(92, 160), (46, 80), (23, 40), (12, 20)];
    Spec { layout: Layout::PlanarRing, ..points(spec(48, 15422, [1, 32], &levels), 8) }
}

fn workloads() -> Vec<Asked> {
    let bevformer = [(116, 200), (58, 100), (29, 50), (15, 25)];
    let all = [
        ("detr-encoder", encoder()),
        ("detr-decoder", decoder()),
        ("bevformer-spatial", points(spec(6, 9664, [8, 32], &bevformer), 8)),
        ("rt-detr-decoder", rt_detr()),
        ("rf-detr-decoder", points(spec(8, 300, [16, 16], &[(40, 40)]), 2)),
        ("seed", seed()),
    ];
    let typed = |(name, spec): &(&str, Spec), dtype| {
        Asked::new(
            format!("{name}-{dtype}"),
            Weight::Workload,
            Spec { types: Types::uniform(dtype), ..spec.clone() },
        )
    };
    [Dtype::F16, Dtype::F32].into_iter().flat_map(|dtype| all.iter().map(move |w| typed(w, dtype))).collect()
}

fn options() -> Vec<Asked> {
    let [f16, bf16, f64] = [Dtype::F16, Dtype::Bf16, Dtype::F64].map(Types::uniform);
    let typed = |types, spec: Spec| Spec { types, ..spec };
    let half = |spec| typed(f16, spec);
    let layout = |layout| half(Spec { layout, ..encoder() });
    let nearest = |spec: Spec| Spec { sampling: Sampling::Nearest, ..spec };
    let border = |spec: Spec| Spec { padding: Padding::Border, ..spec };
    let corners = |spec: Spec| Spec { align_corners: true, ..spec };
    let uneven = || half(Spec { points: vec![3, 6, 3], ..rt_detr() });
    let thin = Spec { levels: vec![(1, 64), (32, 1), (1, 1)], points: vec![4; 3], ..half(decoder()) };
    let once = |name: &str, spec| Asked::new(name, Weight::Once, spec);
    let everywhere = |name: &str, spec| Asked::new(name, Weight::Everywhere, spec);
    let halves = |asked| Asked { sums: Sums::F16, ..asked };
    let fixed = |asked| Asked { sizes: Sizes::Fixed, ..asked };
    let on_device = |asked| Asked { levels: Levels::Device, ..asked };
    let mut all = vec![
        everywhere("bf16", typed(bf16, encoder())),
        once("bf16-f32-coordinates", typed(Types::with_value(Dtype::Bf16), encoder())),
        once("f16-f32-locations", typed(Types { locations: Dtype::F32, ..f16 }, encoder())),
        once("f16-f32-weights", typed(Types { weights: Dtype::F32, ..f16 }, decoder())),
        once("planar", layout(Layout::Planar)),
        once("ring", layout(Layout::PlanarRing)),
        once("ring-decoder", half(Spec { queries: 300, ..seed() })),
        once("levels-resident", half(seed()))
            .kernel("rows:tap_columns=2,threads=512,samples_per_lane=4,resident_levels=2,walk=ordered"),
        halves(once("f16-sums", half(encoder()))),
        halves(once("f16-sums-few", half(decoder()))),
        halves(once("f16-sums-few-of-many", half(rt_detr()))),
        fixed(once("fixed", half(encoder()))),
        fixed(once("fixed-f32", encoder())),
        fixed(once("fixed-resident", half(seed()))),
        halves(fixed(once("fixed-f16-sums", half(encoder())))),
        everywhere("small-encoder", half(small_encoder())),
        everywhere("five-levels", half(five_levels())),
        once("nearest", nearest(half(encoder()))),
        everywhere("nearest-border", nearest(border(half(rt_detr())))),
        once("border", border(half(encoder()))),
        once("corners", corners(half(decoder()))),
        once("corners-border", corners(border(encoder()))),
        everywhere("points-3.6.3", uneven()),
        once("points-3.6.3-many", Spec { queries: 5000, ..uneven() }),
        once("points-1", points(half(encoder()), 1)),
        everywhere("fused-point", half(encoder())).fused(ReferenceKind::Point),
        once("fused-box", half(rt_detr())).fused(ReferenceKind::Box),
        once("fused-box-f32", rt_detr()).fused(ReferenceKind::Box),
        once("fused-five-levels", half(five_levels())).fused(ReferenceKind::Point),
        once("fused-box-3.6.3", uneven()).fused(ReferenceKind::Box),
        once("fused-box-resident", half(seed())).fused(ReferenceKind::Box),
        once("value-of-wider", half(encoder())).change(|operands, problem| {
            // A slice of a tensor of three times the width: rows are not dense, but aligned.
            let row = 3 * problem.heads() * problem.channels();
            operands[Slot::Value].strides = [problem.positions() * row, row, problem.channels()];
        }),
        once("heads-outside", half(decoder())).change(|operands, problem| {
            // Locations and weights as (B, H, Q, ...).
            for (slot, role) in [(Slot::Locations, Role::Locations), (Slot::Weights, Role::Weights)] {
                let ([_, queries, heads], inner) = role.shape(problem);
                operands[slot].strides = [heads * queries * inner, inner, queries * inner];
            }
        }),
        everywhere("unaligned-value", half(encoder())).change(|o, _| o[Slot::Value].align = 4),
        once("unaligned-all", half(decoder())).change(|operands, _| {
            for slot in [Slot::Value, Slot::Locations, Slot::Weights, Slot::Output] {
                operands[slot].align = 2;
            }
        }),
        everywhere("f64", typed(f64, decoder())),
        once("f64-fused-point", typed(f64, decoder())).fused(ReferenceKind::Point),
        once("f64-nearest-border", nearest(border(typed(f64, decoder())))),
        on_device(everywhere("levels-on-device", half(encoder()))),
        on_device(everywhere("levels-on-device-few", half(decoder()))),
        on_device(once("levels-on-device-planar", half(seed()))),
        everywhere("thin-levels", thin),
        on_device(once("levels-on-device-bf16", typed(bf16, encoder()))).fused(ReferenceKind::Box),
    ];
    let channels = [
        (1, Dtype::F32),
        (1, Dtype::F16),
        (5, Dtype::F32),
        (24, Dtype::F16),
        (16, Dtype::F32),
        (64, Dtype::F16),
        (128, Dtype::Bf16),
        (256, Dtype::F16),
        (256, Dtype::F32),
    ];
    all.extend(channels.map(|(channels, dtype)| {
        let weight = if channels == 24 { Weight::Everywhere } else { Weight::Once };
        let spec = Spec { channels, ..typed(Types::uniform(dtype), encoder()) };
        Asked::new(format!("d{channels}-{dtype}"), weight, spec)
    }));
    all
}

/// Backward passes.
fn gradients() -> Vec<Asked> {
    use Weight::{Everywhere, Once};
    let typed = |spec: Spec, dtype| Spec { types: Types::uniform(dtype), ..spec };
    let half = |spec: Spec| typed(spec, Dtype::F16);
    let of = |name: &str, weight, spec| Asked::new(format!("backward-{name}"), weight, spec).backward(None);
    let fused = |name: &str, weight, spec, kind| {
        Asked::new(format!("backward-{name}"), weight, spec).backward(Some(kind))
    };
    let on_device = |asked: Asked| {
        let problem = Levels::hidden(&asked.problem).unwrap();
        Asked { levels: Levels::Device, problem, ..asked }
    };
    vec![
        of("detr-encoder-f16", Everywhere, half(encoder())),
        of("detr-encoder-bf16", Once, typed(encoder(), Dtype::Bf16)),
        of("detr-encoder-f32", Everywhere, encoder()),
        of("rt-detr-decoder-f16", Everywhere, half(rt_detr())),
        of("detr-decoder-f32", Once, decoder()),
        Asked { scatter: Scatter::Sorted, ..of("sorted-decoder-f32", Once, decoder()) },
        on_device(of("levels-on-device-few", Once, half(decoder()))),
        of("seed-f16", Once, half(seed())),
        on_device(of("levels-on-device", Once, half(encoder()))),
        on_device(of("levels-on-device-planar", Once, half(seed()))),
        // Several batches per block, with a counter per bin in shared memory.
        of("large-level", Everywhere, points(spec(1, 2000, [2, 8], &[(256, 256)]), 4)),
        of("f64-large-level", Once, typed(points(spec(1, 2000, [2, 8], &[(1100, 240)]), 4), Dtype::F64)),
        // Shared memory has the sizes of all levels.
        of("many-levels", Everywhere, points(spec(1, 9000, [1, 8], &[(2, 3); 1024]), 1)),
        of("points-3.6.3", Once, half(Spec { points: vec![3, 6, 3], ..rt_detr() })),
        of("d16-f16", Once, half(Spec { channels: 16, ..encoder() })),
        of("d8-f32", Once, Spec { channels: 8, ..encoder() }),
        of("d17-f16", Once, half(Spec { channels: 17, ..encoder() })),
        of(
            "nearest-border",
            Once,
            half(Spec { sampling: Sampling::Nearest, padding: Padding::Border, ..decoder() }),
        ),
        of("f64", Everywhere, typed(decoder(), Dtype::F64)),
        fused("fused-point-f16", Once, half(encoder()), ReferenceKind::Point),
        fused("fused-five-levels", Once, half(five_levels()), ReferenceKind::Point),
        fused("fused-box-f32", Once, decoder(), ReferenceKind::Box),
        fused("f64-fused-box", Once, typed(decoder(), Dtype::F64), ReferenceKind::Box),
        Asked { scatter: Scatter::Atomic, ..of("atomic-f16", Everywhere, half(encoder())) },
    ]
}

/// Kernels that run before others.
fn helpers(target: &Target) -> Vec<Case> {
    let typed = |dtype, n| Spec { types: Types::uniform(dtype), ..points(decoder(), n) };
    let problem = |dtype, n| Problem::new(typed(dtype, n)).unwrap();
    let case = |weight, prepared: &Prepared| Case::new(prepared.unit.key.clone(), weight, prepared);
    let mut all = Vec::new();
    for (dtype, points, weight) in
        [(Dtype::F16, 8, Weight::Workload), (Dtype::F32, 8, Weight::Workload), (Dtype::Bf16, 1, Weight::Once)]
    {
        let p = problem(dtype, points);
        let (operands, mut call) = (Operands::dense(&p, None), Call::default());
        order_first(&mut call, &Request::new(&p, &operands), target);
        all.push(case(weight, call.last().unwrap()));
    }
    for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
        let p = problem(dtype, 4);
        let value = (&p, Operand::dense(&p, Role::Value));
        let weight = if dtype == Dtype::F16 { Weight::Everywhere } else { Weight::Once };
        all.extend(pack(value, value, target).iter().map(|prepared| case(weight, prepared)));
    }
    all
}
