//! The rules for devices in control groups of version 2: a program of the kernel's, attached to the group of an instance and so
//! to those of all its sandboxes. With version 1, the same rules are written into a file. They are a second layer of
//! defence. No file system that a sandbox can write to lets a device be opened, and no process in it may make one.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use syscalls::{Sysno, syscall};

use super::plan::Limit;

/// Character devices that can be opened: null, zero, full, random, urandom, the terminal of a process, the multiplexer of
/// terminals, and terminals. Without a second number, all with the first.
const ALLOWED: [(i32, Option<i32>); 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

// Numbers of `linux/bpf.h`.
const COMMAND_LOAD: usize = 5;
const COMMAND_ATTACH: usize = 8;
const PROGRAM_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// A group below may have programs of its own, and each must allow an access.
const ALLOW_MULTIPLE: u32 = 2;
const CHARACTER_DEVICE: i32 = 2;
/// The access of a process that makes a node, and doesn't open it.
const MAKE: i32 = 1;

/// The operation of an instruction, without its registers and numbers.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Operation {
    And = 0x57,
    JumpIfEqual = 0x15,
    JumpIfNot = 0x55,
    Load = 0x61,
    Move = 0xbf,
    Return = 0x95,
    Set = 0xb7,
    ShiftRight = 0x77,
}

/// An instruction, as the kernel takes it.
type Instruction = [u8; 8];

// Registers: the result, the kernel's description of an access, and the parts of it.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const MAJOR: u8 = 3;
const MINOR: u8 = 4;
const ACCESS: u8 = 5;

fn instruction(operation: Operation, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = number.to_ne_bytes();
    [operation as u8, from << 4 | to, low, high, a, b, c, d]
}

/// Two instructions that end the program.
fn answer(is_allowed: bool) -> [Instruction; 2] {
    let result = i32::from(is_allowed);
    [instruction(Operation::Set, RESULT, 0, 0, result), instruction(Operation::Return, 0, 0, 0, 0)]
}

/// The program. It gets three numbers: the access (its upper half) and the kind of device (its lower half), and
/// the two numbers of the device.
fn program() -> Vec<Instruction> {
    let load = |to, offset| instruction(Operation::Load, to, CONTEXT, offset, 0);
    let unless =
        |register, number, skip| instruction(Operation::JumpIfNot, register, 0, skip, number);
    let mut program = vec![
        load(KIND, 0),
        load(MAJOR, 4),
        load(MINOR, 8),
        instruction(Operation::Move, ACCESS, KIND, 0, 0),
        instruction(Operation::ShiftRight, ACCESS, 0, 0, 16),
        unless(ACCESS, MAKE, 2),
    ];
    program.extend(answer(true));
    program.push(instruction(Operation::And, KIND, 0, 0, 0xffff));
    program.push(instruction(Operation::JumpIfEqual, KIND, 0, 2, CHARACTER_DEVICE));
    program.extend(answer(false));
    for (major, minor) in ALLOWED {
        match minor {
            Some(minor) => program.extend([unless(MAJOR, major, 3), unless(MINOR, minor, 2)]),
            None => program.push(unless(MAJOR, major, 2)),
        }
        program.extend(answer(true));
    }
    program.extend(answer(false));
    program
}

/// The arguments that load a program (`union bpf_attr`). All others are zero.
#[repr(C)]
#[derive(Default)]
struct Loaded {
    program_type: u32,
    instructions: u32,
    program: u64,
    license: u64,
    log: [u64; 2],
    kernel_and_flags: u64,
    name: [u64; 2],
    interface: u32,
    attach_type: u32,
}

/// The arguments that attach a program.
#[repr(C)]
struct Attached {
    group: RawFd,
    program: RawFd,
    attach_type: u32,
    flags: u32,
}

/// The same rules for a group of version 1 that allows this list of devices, as files to write. What is in a group that has the
/// rules loses no device at any moment.
pub(super) fn rules(devices: &str) -> Vec<Limit> {
    let rule =
        |file: &str, value: String| Limit { file: file.to_owned(), value, is_optional: false };
    let others = ["c *:* m", "b *:* m"].map(|all| rule("devices.allow", all.to_owned()));
    let allowed = ALLOWED.into_iter().map(|(major, minor)| {
        let minor = minor.map_or("*".to_owned(), |minor| minor.to_string());
        rule("devices.allow", format!("c {major}:{minor} rwm"))
    });
    let has_all = devices.starts_with('a');
    let none = has_all.then(|| rule("devices.deny", "a".to_owned()));
    none.into_iter().chain(others).chain(allowed).collect()
}

/// Restricts the devices of a group of version 2. Without that only a second layer of defence is missing.
pub(super) fn restrict_or_warn(group: &Path) {
    match restrict(group) {
        Ok(()) => {}
        // So it is without root.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::debug!(%error, "control groups have no rules for devices");
        }
        Err(error) => tracing::warn!(%error, "control groups have no rules for devices"),
    }
}

/// Lets the processes below a group of version 2 open only harmless devices. It ends with the group.
///
/// # Errors
///
/// Without root, and if the kernel was built without it.
fn restrict(group: &Path) -> io::Result<()> {
    let group = File::open(group)?;
    let program = program();
    let loaded = Loaded {
        program_type: PROGRAM_CGROUP_DEVICE,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        // It uses no function of the kernel, so any will do.
        license: c"".as_ptr() as u64,
        attach_type: ATTACH_CGROUP_DEVICE,
        ..Loaded::default()
    };
    let descriptor = bpf(COMMAND_LOAD, &loaded)?;
    #[allow(unsafe_code)]
    // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) };
    let attached = Attached {
        group: group.as_raw_fd(),
        program: descriptor.as_raw_fd(),
        attach_type: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTIPLE,
    };
    bpf(COMMAND_ATTACH, &attached).map(|_| ())
}

#[allow(unsafe_code)]
fn bpf<T>(command: usize, arguments: &T) -> io::Result<usize> {
    // SAFETY: the kernel reads the arguments and what they point to, all of which live as long as the call. These
    // two commands write nothing back: there is no log.
    let result =
        unsafe { syscall!(Sysno::bpf, command, std::ptr::from_ref(arguments), size_of::<T>()) };
    result.map_err(|error| io::Error::from_raw_os_error(error.into_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_group_loses_all_devices_for_a_moment() {
        let new = rules("a *:* rwm\n");
        assert_eq!((new[0].file.as_str(), new[0].value.as_str()), ("devices.deny", "a"));
        for devices in ["", "c *:* m\nb *:* m\nc 1:3 rwm\n"] {
            let again = rules(devices);
            assert_eq!(again, new[1..], "{devices:?}");
            assert!(again.iter().all(|rule| rule.file == "devices.allow"), "{devices:?}");
        }
    }
}
