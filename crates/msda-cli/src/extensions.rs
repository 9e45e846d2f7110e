//! The engines and report sections of this build: those of the study where the feature `study` is
//! on.

pub(crate) use build::{Sections, registry};

#[cfg(feature = "study")]
mod build {
    use msda_bench::engines::Registry;
    use msda_bench::report::Extension;
    use msda_study::report::{self, Judge};

    /// The engines of this build.
    pub(crate) fn registry() -> Registry {
        msda_study::registry()
    }

    /// Options about the study's sections of a report.
    #[derive(clap::Args)]
    pub(crate) struct Sections {
        /// Whether the report judges the claims of the founding documents
        #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
        claims: When,
    }

    #[derive(Clone, Copy, clap::ValueEnum)]
    enum When {
        /// If a record has GPU measurements
        Auto,
        /// Always
        Always,
        /// Never
        Never,
    }

    impl Sections {
        /// The sections of a benchmark's own report, which judges no claims.
        pub(crate) fn of_bench() -> Self {
            Self { claims: When::Never }
        }

        /// The sections that the study adds to a report.
        pub(crate) fn extensions(&self) -> Vec<Box<dyn Extension>> {
            let claims = match self.claims {
                When::Auto => Judge::Gpu,
                When::Always => Judge::Always,
                When::Never => Judge::Never,
            };
            vec![Box::new(report::Sections { claims })]
        }
    }
}

#[cfg(not(feature = "study"))]
mod build {
    use msda_bench::engines::Registry;
    use msda_bench::report::Extension;

    /// The engines of this build.
    pub(crate) fn registry() -> Registry {
        Registry::default()
    }

    /// No options.
    #[derive(clap::Args)]
    pub(crate) struct Sections {}

    impl Sections {
        /// The sections of a benchmark's own report.
        pub(crate) fn of_bench() -> Self {
            Self {}
        }

        /// Nothing is added to a report.
        pub(crate) fn extensions(&self) -> Vec<Box<dyn Extension>> {
            Vec::new()
        }
    }
}
