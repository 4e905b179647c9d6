//! Connections and the threads that serve them.
//!
//! Each thread has a runtime of its own, and a connection stays with the thread it was given to. A request then begins and
//! ends on one thread: nothing has to be woken for it, which on an idle machine costs as much as deciding. One thread takes
//! connections and deals them out in turn.

use crate::{App, router};
use axum::serve::Listener;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// More threads than this have not been seen to help.
const THREADS_MAX: usize = 16;

/// Connections that are dealt to one thread.
struct Dealt {
    connections: mpsc::UnboundedReceiver<std::net::TcpStream>,
    address: SocketAddr,
}

impl Listener for Dealt {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let Some(connection) = self.connections.recv().await else {
                // No more will come; those that are open are served to their end.
                return std::future::pending().await;
            };
            let peer = connection.peer_addr();
            if let (Ok(connection), Ok(peer)) = (TcpStream::from_std(connection), peer) {
                return (connection, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// Serves until `until` resolves, then lets open requests finish.
pub async fn serve(listener: TcpListener, app: Arc<App>, until: impl Future<Output = ()> + Send) -> io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS_MAX);
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(false);
    let (ended, mut all_ended) = mpsc::channel::<()>(1);
    let mut hands = Vec::with_capacity(threads);
    for n in 0..threads {
        let (hand, connections) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (app, mut stopping, ended) = (app.clone(), stopping.clone(), ended.clone());
        let work = move || {
            let until = async move { drop(stopping.wait_for(|is_stopping| *is_stopping).await) };
            let serving = axum::serve(Dealt { connections, address }, router(app)).with_graceful_shutdown(until);
            if let Err(error) = runtime.block_on(serving.into_future()) {
                tracing::error!(%error, "connections can no longer be served");
            }
            drop(ended);
        };
        std::thread::Builder::new().name(format!("http-{n}")).spawn(work)?;
        hands.push(hand);
    }
    drop(ended);
    let deal = async {
        for hand in hands.iter().cycle() {
            match listener.accept().await.and_then(|(socket, _)| at_once(socket)) {
                // The thread is gone only when the process is about to be.
                Ok(socket) => drop(hand.send(socket)),
                // Out of files, most likely; those that are open will end.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::select! {
        () = deal => {}
        () = until => {}
    }
    stop.send_replace(true);
    // Answers when the last thread has let go of its end.
    all_ended.recv().await;
    Ok(())
}

/// Answers are small and complete: waiting for more to send with them only adds latency.
fn at_once(socket: TcpStream) -> io::Result<std::net::TcpStream> {
    socket.set_nodelay(true)?;
    socket.into_std()
}
