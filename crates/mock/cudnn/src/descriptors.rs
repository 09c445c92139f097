//! Descriptors by handle, made and destroyed by functions of C.

/// Declares the descriptors of a module: for each, its kind in counts, its table, its content once it is set, where handles
/// begin, the function that returns the content, and the functions of C that make and destroy it.
///
/// Also declares what the levers of tests ask of a module: `count` and `reset`.
macro_rules! descriptors {
    ($($kind:literal, $table:ident: $content:ty, $base:literal, $get:ident, $create:ident, $destroy:ident;)*) => {
        /// Live descriptors; those not set yet hold nothing.
        struct Descriptors { $($table: $crate::descriptors::Table<Option<$content>>,)* }

        static DESCRIPTORS: ::std::sync::Mutex<Descriptors> =
            ::std::sync::Mutex::new(Descriptors { $($table: $crate::descriptors::Table::new($base),)* });

        /// Live descriptors of a kind.
        pub fn count(kind: &str) -> Option<u64> {
            let descriptors = lock(&DESCRIPTORS);
            match kind {
                $($kind => Some(descriptors.$table.live() as u64),)*
                _ => None,
            }
        }

        /// Forgets all descriptors.
        pub fn reset() {
            let mut descriptors = lock(&DESCRIPTORS);
            $(descriptors.$table.clear();)*
        }

        $(
            /// The content of a descriptor.
            pub fn $get(handle: Handle) -> Result<$content, Status> {
                lock(&DESCRIPTORS).$table.get(handle)?.clone().ok_or(Status::BAD_PARAM)
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn $create(descriptor: $crate::Out<Handle>) -> c_int {
                call(stringify!($create), || {
                    $crate::room(descriptor)?.write(lock(&DESCRIPTORS).$table.insert(None));
                    Ok(())
                })
            }

            #[unsafe(no_mangle)]
            pub extern "C" fn $destroy(descriptor: Handle) -> c_int {
                $crate::control::release(stringify!($destroy), || {
                    Ok(lock(&DESCRIPTORS).$table.remove(descriptor).map(drop)?)
                })
            }
        )*
    };
}

pub(crate) use descriptors;
pub(crate) use tightfit_mock_support::Table;
