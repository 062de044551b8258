//! The macros that declare what a component's section of the config holds, next to the component.

/// Declares a component's config: a struct whose fields are the section's keys.
///
/// ```
/// config::component! {
///     /// Stochastic gradient descent.
///     pub struct SgdConfig {
///         /// Learning rate, > 0.
///         pub lr: f64 [positive],
///         /// Momentum factor, 0 for none.
///         pub momentum: f64 [0.0..=1.0] = 0.0,
///         /// Steps of warm-up; `null` = none.
///         pub warmup_steps: Option<usize> [1..] = None,
///     }
/// }
/// ```
///
/// - Every field has a doc comment: one sentence with meaning, unit, range, default, special value.
/// - `= default` makes a key optional; without it the key is required. If every field has a default, the struct
///   implements `Default`.
/// - `[…]` behind the type limits the value; see [`check`](crate::check) for the forms.
/// - `name as "key": T` gives a field another name than its key.
/// - A last field behind `..`, of type [`Map`](crate::Map), collects all other keys, for components that pass them
///   on; without it unknown keys are reported.
///
/// The struct derives `Debug`, `Clone` and `PartialEq`, has `FIELDS` (the source of the reference page) and
/// `check(&Node, &mut Problems) -> Option<Self>`, and implements [`FromNode`](crate::FromNode), so that it can be
/// a field of another component. `_component_` is skipped: [`Names`](crate::Names) reads it.
#[macro_export]
macro_rules! component {
    // Every field has a default: `Default` too.
    (
        $(#[doc = $about:expr])*
        $vis:vis struct $Name:ident {
            $(
                $(#[doc = $doc:expr])*
                $fvis:vis $field:ident $(as $key:literal)? : $ty:ty $([ $($check:tt)+ ])? = $default:expr
            ),* $(,)?
        }
    ) => {
        $crate::__component! {
            $(#[doc = $about])* $vis struct $Name {
                $( $(#[doc = $doc])* $fvis $field ($crate::__key!($field $(as $key)?)) $ty, ($($($check)+)?), ($default); )*
            }
        }

        impl ::core::default::Default for $Name {
            fn default() -> Self {
                Self { $( $field: $default ),* }
            }
        }
    };
    (
        $(#[doc = $about:expr])*
        $vis:vis struct $Name:ident {
            $(
                $(#[doc = $doc:expr])*
                $fvis:vis $field:ident $(as $key:literal)? : $ty:ty $([ $($check:tt)+ ])? $(= $default:expr)?
            ),* $(,)?
        }
    ) => {
        $crate::__component! {
            $(#[doc = $about])* $vis struct $Name {
                $( $(#[doc = $doc])* $fvis $field ($crate::__key!($field $(as $key)?)) $ty, ($($($check)+)?), ($($default)?); )*
            }
        }
    };
    // A last entry collects all other keys.
    (
        $(#[doc = $about:expr])*
        $vis:vis struct $Name:ident {
            $(
                $(#[doc = $doc:expr])*
                $fvis:vis $field:ident $(as $key:literal)? : $ty:ty $([ $($check:tt)+ ])? $(= $default:expr)?,
            )*
            .. $(#[doc = $rest_doc:expr])* $rvis:vis $rest:ident : $rest_ty:ty $(,)?
        }
    ) => {
        $crate::__component! {
            $(#[doc = $about])* $vis struct $Name {
                $( $(#[doc = $doc])* $fvis $field ($crate::__key!($field $(as $key)?)) $ty, ($($($check)+)?), ($($default)?); )*
                .. $(#[doc = $rest_doc])* $rvis $rest: $rest_ty
            }
        }
    };
}

/// What both forms of [`component!`] expand to.
#[doc(hidden)]
#[macro_export]
macro_rules! __component {
    (
        $(#[doc = $about:expr])*
        $vis:vis struct $Name:ident {
            $(
                $(#[doc = $doc:expr])*
                $fvis:vis $field:ident ($key:expr) $ty:ty, ($($check:tt)*), ($($default:expr)?);
            )*
            $(.. $(#[doc = $rest_doc:expr])* $rvis:vis $rest:ident : $rest_ty:ty)?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $Name {
            $( $(#[doc = $doc])* $fvis $field: $ty, )*
            $( $(#[doc = $rest_doc])* $rvis $rest: $rest_ty, )?
        }

        impl $Name {
            /// The section's keys, in the order of the reference page.
            pub const FIELDS: &'static [$crate::FieldSpec] = &[
                $( $crate::FieldSpec {
                    name: $key,
                    ty: stringify!($ty),
                    default: $crate::__default_text!($($default)?),
                    doc: concat!($($doc),*).trim_ascii(),
                    accepts: || $crate::__private::accepts::<$ty>($crate::__check!($($check)*).as_ref()),
                }, )*
            ];

            /// The config of a section, or `None` after all of its problems were reported.
            pub fn check(
                node: &$crate::Node,
                problems: &mut $crate::Problems,
            ) -> ::core::option::Option<Self> {
                #[allow(unused_mut)]
                let mut section = $crate::__private::Section::open(node, Self::FIELDS, problems)?;
                $(
                    let check = $crate::__check!($($check)*);
                    let $field: ::core::option::Option<$ty> =
                        $crate::__read!(section, $key, check.as_ref() $(, $default)?);
                )*
                $crate::__finish!(section $(, $rest)?);
                ::core::option::Option::Some(Self { $( $field: $field?, )* $($rest)? })
            }
        }

        impl $crate::Described for $Name {
            const ABOUT: &'static str = concat!($($about, "\n"),*).trim_ascii();
            const FIELDS: &'static [$crate::FieldSpec] = $Name::FIELDS;
        }

        impl $crate::FromNode for $Name {
            fn expected() -> ::std::string::String {
                "a section".into()
            }

            fn from_node(
                node: &$crate::Node,
                problems: &mut $crate::Problems,
            ) -> ::core::option::Option<Self> {
                Self::check(node, problems)
            }
        }
    };
}

/// A field's key.
#[doc(hidden)]
#[macro_export]
macro_rules! __key {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident as $key:literal) => {
        $key
    };
}

/// A default's text.
#[doc(hidden)]
#[macro_export]
macro_rules! __default_text {
    () => {
        ::core::option::Option::None
    };
    ($default:expr) => {
        ::core::option::Option::Some(stringify!($default))
    };
}

/// A limit as an `Option<Check>`.
#[doc(hidden)]
#[macro_export]
macro_rules! __check {
    () => { ::core::option::Option::<$crate::check::Check>::None };
    (positive) => { ::core::option::Option::Some($crate::check::Check::Positive) };
    (positive_or_inf) => { ::core::option::Option::Some($crate::check::Check::PositiveOrInf) };
    (one_of($($word:literal),+ $(,)?)) => { ::core::option::Option::Some($crate::check::Check::OneOf(&[$($word),+])) };
    ($range:expr) => { ::core::option::Option::Some($crate::check::Check::from($range)) };
}

/// Reads one key.
#[doc(hidden)]
#[macro_export]
macro_rules! __read {
    ($section:ident, $key:expr, $check:expr) => {
        $section.required($key, $check)
    };
    ($section:ident, $key:expr, $check:expr, $default:expr) => {
        $section.optional($key, $check, || $default)
    };
}

/// Ends a section: other keys are collected, or reported.
#[doc(hidden)]
#[macro_export]
macro_rules! __finish {
    ($section:ident) => {
        $section.close()
    };
    ($section:ident, $rest:ident) => {
        let $rest = $section.rest();
    };
}

/// Declares an enum whose variants are words of the config.
///
/// ```
/// config::choice! {
///     /// Number format of the weights.
///     pub enum Dtype {
///         /// 16 bits, 8 of them exponent.
///         Bf16 = "bf16" | "bfloat16",
///         /// 32 bits.
///         Fp32 = "fp32",
///     }
/// }
/// assert_eq!(Dtype::Bf16.name(), "bf16");
/// ```
///
/// Upper and lower case are the same. The enum derives `Debug`, `Clone`, `Copy`, `PartialEq` and `Eq`, has
/// `name()` (the first spelling) and implements [`FromNode`](crate::FromNode) and `Display`.
#[macro_export]
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Name:ident {
            $( $(#[$vmeta:meta])* $Variant:ident = $word:literal $(| $more:literal)* ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $Name {
            $( $(#[$vmeta])* $Variant, )+
        }

        impl $Name {
            const SPELLINGS: &'static [(&'static [&'static str], Self)] = &[
                $( (&[$word $(, $more)*], Self::$Variant), )+
            ];

            /// The word as it is written in a config.
            pub fn name(self) -> &'static str {
                match self {
                    $( Self::$Variant => $word, )+
                }
            }
        }

        impl ::core::fmt::Display for $Name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl $crate::FromNode for $Name {
            fn expected() -> ::std::string::String {
                $crate::__private::one_of(Self::SPELLINGS)
            }

            fn from_node(
                node: &$crate::Node,
                problems: &mut $crate::Problems,
            ) -> ::core::option::Option<Self> {
                $crate::__private::choose(Self::SPELLINGS, node, problems)
            }
        }
    };
}
