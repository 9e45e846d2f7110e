//! The groups of the battery.

use super::cases::Maker;
use super::data::Case;

macro_rules! groups {
    ($($(#[doc = $doc:literal])+ $group:ident $name:literal $make:ident;)*) => {
        /// A family of cases. Every backend must pass all groups.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Group {
            $($(#[doc = $doc])+ $group,)*
        }

        impl Group {
            /// All groups.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$group),*];

            /// The name of the group in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$group => $name,)*
                }
            }

            /// The cases of this group. Another seed gives other random numbers.
            pub fn cases(self, seed: u64) -> Vec<Case> {
                let mut maker = Maker::new(seed ^ (self as u64) << 32);
                match self {
                    $(Self::$group => maker.$make(),)*
                }
                maker.into_cases()
            }
        }
    };
}

groups! {
    /// Random sizes, options, types and forms.
    Random "random" random;
    /// All samples well inside their level.
    Inside "inside" inside;
    /// All samples off the map: the output and all gradients are zero.
    Outside "outside" outside;
    /// Samples exactly on borders, corners and pixel centres.
    Borders "borders" borders;
    /// Locations that are NaN or infinite, in each combination.
    NotFinite "not-finite" not_finite;
    /// Values, weights and upstream gradients that are NaN or infinite.
    NotFiniteData "not-finite-data" not_finite_data;
    /// Levels of one pixel, one row or one column.
    OnePixel "one-pixel" one_pixel;
    /// No images, no queries, no heads or no points.
    Empty "empty" empty;
    /// Channel counts around the widths of vector registers.
    Channels "channels" channels;
    /// One level and many levels.
    Levels "levels" levels;
    /// A different number of points on each level.
    Points "points" points;
    /// Inputs and outputs with gaps, other orders of dimensions, and inputs with stride 0.
    Strides "strides" strides;
    /// Tensors that begin one or three elements after an aligned address.
    Unaligned "unaligned" unaligned;
    /// Each layout of value, with gaps between the levels.
    Layouts "layouts" layouts;
    /// Each combination of sampling, padding and corner alignment.
    Options "options" options;
    /// Each supported combination of types.
    Types "types" types;
    /// Reference points and boxes, raw offsets and logits.
    Fused "fused" fused;
    /// NaN in pixels that no sample reads: it must not reach a result.
    Untouched "untouched" untouched;
    /// Samples that cancel each other, so that rounding errors show.
    Cancelling "cancelling" cancelling;
    /// Hundreds of samples on a few pixels: sums in 16 bits lose most of them.
    Crowded "crowded" crowded;
    /// Subnormal `f16` numbers, and results that overflow to infinity.
    Extremes "extremes" extremes;
    /// Each gradient alone.
    Partial "partial" partial;
    /// Calls that must be refused with nothing written.
    Refusals "refusals" refusals;
}
