//! Writes that may have no reader: the program's exit must not depend on one.

use std::mem::zeroed;
use std::ptr::null_mut;

use libc::{SIG_BLOCK, SIG_SETMASK, SIGPIPE};

/// Calls `write` so that a pipe or socket without a reader gives an error, not a SIGPIPE that would end the program.
/// The program may rely on SIGPIPE for its own writes.
pub fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals are plain bits; each call gets valid places to read and write.
    let (pipe, mask, was_pending) = unsafe {
        let (mut pipe, mut mask, mut pending) = (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, SIGPIPE);
        libc::sigpending(&mut pending);
        libc::pthread_sigmask(SIG_BLOCK, &pipe, &mut mask);
        (pipe, mask, libc::sigismember(&pending, SIGPIPE) == 1)
    };
    let written = write();
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above. A signal that `write` raised is pending for this thread; it is taken before it can arrive.
    unsafe {
        if !was_pending {
            while libc::sigtimedwait(&pipe, null_mut(), &at_once) == -1
                && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
            {}
        }
        libc::pthread_sigmask(SIG_SETMASK, &mask, null_mut());
    }
    written
}
