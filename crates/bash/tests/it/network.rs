//! Sockets. All of it on the loopback interface.

use crate::harness::{all_allowed, at_every_level};
use bash::{Command, FileAccess, NetworkAccess};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

/// With Python where it is there, because bash alone has no Unix sockets.
fn try_sockets(port: u16, unix: &str) -> String {
    format!(
        "{{ exec 3<> /dev/tcp/127.0.0.1/{port}; }} 2> /dev/null && echo tcp
         {{ echo x > /dev/udp/127.0.0.1/{port}; }} 2> /dev/null && echo udp
         command -v python3 > /dev/null || exit 0
         python3 - << 'END'
import socket
def attempt(name, do):
    try:
        do()
        print(name)
    except OSError:
        pass
attempt('unix', lambda: socket.socket(socket.AF_UNIX).connect('{unix}'))
attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
attempt('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt('alg', lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET))
attempt('pair', lambda: socket.socketpair())
END"
    )
}

#[test]
fn sockets_are_as_allowed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let has_connected = || match listener.accept() {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    };
    at_every_level("network", |setting| {
        let unix = setting.new_folder("socket").join("s");
        let _unix = UnixListener::bind(&unix).unwrap();
        let text = try_sockets(port, unix.to_str().unwrap());
        let run = |files, network| {
            let done = setting.try_run(Command { files, network, ..setting.command(text.clone()) });
            done.map(|finished| finished.stdout)
        };
        for files in [FileAccess::WorkFolder, FileAccess::Anywhere] {
            match run(files, NetworkAccess::Off) {
                Ok(said) => assert!(["", "pair\n"].contains(&said.as_str()), "{said}"),
                Err(error) => assert!(!setting.is_restricted() && error.code() == "sandbox_unavailable", "{error}"),
            }
            assert!(!has_connected());
        }
        if setting.is_restricted() {
            let said = run(FileAccess::WorkFolder, NetworkAccess::On).unwrap();
            assert!(["tcp\nudp\n", "tcp\nudp\npair\n"].contains(&said.as_str()), "{said}");
            assert!(has_connected());
        }
        let said = setting.run(all_allowed(Command::new(text))).stdout;
        assert!(said.starts_with("tcp\nudp\n"), "{said}");
        assert!(has_connected());
    });
}
