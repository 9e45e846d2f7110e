//! Enums that list their variants.

/// Declares an enum, and `ALL` with its variants in order.
macro_rules! listed {
    ($(#[$meta:meta])* $visible:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        $visible enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them.
            $visible const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }
    };
}
pub(crate) use listed;
