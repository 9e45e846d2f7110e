//! Problems and tensors that several tests use.
#![allow(dead_code)] // each test uses some of it

use msda::rng::Rng;
use msda::{
    Backend, Buffer, Gradients, Inputs, Problem, Reference, ReferenceKind, Role, Spec, Strides, View, ViewMut,
};

/// `[batch, queries, heads, channels]`, levels and points, with the usual options.
pub(crate) fn sized(
    [batch, queries, heads, channels]: [usize; 4],
    levels: &[(usize, usize)],
    points: &[usize],
) -> Spec {
    let (levels, points) = (levels.to_vec(), points.to_vec());
    Spec { batch, queries, heads, channels, levels, points, ..Spec::default() }
}

/// The tensors of a call.
#[derive(Clone)]
pub(crate) struct Tensors {
    pub(crate) p: Problem,
    /// The kind of reference points in the fused form.
    pub(crate) kind: Option<ReferenceKind>,
    /// Outer strides are so many times the dense ones: with 2, as much memory lies between rows as
    /// in them.
    pub(crate) apart: usize,
    pub(crate) value: Buffer,
    pub(crate) locations: Buffer,
    pub(crate) weights: Buffer,
    pub(crate) reference: Buffer,
    pub(crate) upstream: Buffer,
}

impl Tensors {
    /// Dense tensors with random numbers.
    pub(crate) fn random(p: &Problem, kind: Option<ReferenceKind>) -> Self {
        Self::random_apart(p, kind, 1)
    }

    pub(crate) fn random_apart(p: &Problem, kind: Option<ReferenceKind>, apart: usize) -> Self {
        let (t, mut rng) = (p.types(), Rng::new(5));
        let mut random = |dtype, len, number: fn(&mut Rng) -> f64| {
            Buffer::from_fn(dtype, apart * len, |_| number(&mut rng))
        };
        let near_the_map: fn(&mut Rng) -> f64 = |rng| rng.between(-0.1, 1.1);
        let of_locations = if kind.is_some() { Rng::normal } else { near_the_map };
        let numbers = kind.map_or(0, ReferenceKind::dim);
        Self {
            value: random(t.value, p.value_len(), Rng::normal),
            locations: random(t.locations, p.locations_len(), of_locations),
            weights: random(t.weights, p.weights_len(), Rng::normal),
            reference: random(t.locations, p.reference_len(numbers), |rng| rng.between(0.2, 0.8)),
            upstream: random(t.value, p.output_len(), Rng::normal),
            p: p.clone(),
            kind,
            apart,
        }
    }

    fn strides(&self, role: Role) -> Option<Strides> {
        (self.apart > 1).then(|| role.dense(&self.p).map(|stride| self.apart * stride))
    }

    fn view<'a>(&self, role: Role, buffer: &'a Buffer) -> View<'a> {
        View { data: buffer.as_slice(), strides: self.strides(role) }
    }

    pub(crate) fn inputs(&self) -> Inputs<'_> {
        let reference = |kind| Reference { kind, view: self.view(Role::Reference(kind), &self.reference) };
        Inputs {
            value: self.view(Role::Value, &self.value),
            locations: self.view(Role::Locations, &self.locations),
            weights: self.view(Role::Weights, &self.weights),
            reference: self.kind.map(reference),
        }
    }

    pub(crate) fn upstream(&self) -> View<'_> {
        self.view(Role::Output, &self.upstream)
    }

    /// The output and the gradients of value, locations, weights and reference points, in memory
    /// that held NaN.
    pub(crate) fn run(&self, backend: &dyn Backend) -> [Buffer; 5] {
        let like = [&self.upstream, &self.value, &self.locations, &self.weights, &self.reference];
        let mut all = like.map(|buffer| Buffer::filled(buffer.dtype(), buffer.len(), f64::NAN));
        let reference = self.kind.map(Role::Reference);
        let roles =
            [Some(Role::Output), Some(Role::Value), Some(Role::Locations), Some(Role::Weights), reference];
        let mut views = roles.into_iter().zip(&mut all).map(|(role, buffer)| {
            role.map(|role| ViewMut { data: buffer.as_mut(), strides: self.strides(role) })
        });
        let mut next = || views.next().flatten();
        let output = next().expect("the first is there");
        let gradients = Gradients { value: next(), locations: next(), weights: next(), reference: next() };
        backend.forward(&self.p, &self.inputs(), output).unwrap();
        backend.backward(&self.p, &self.inputs(), self.upstream(), gradients).unwrap();
        all
    }
}
