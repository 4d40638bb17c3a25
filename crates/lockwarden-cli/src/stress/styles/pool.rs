//! A pool of connections, as Redis clients of web services have: each command borrows one, a new one is made where none
//! is idle, and beyond the most a command waits.

use redis::{Client, RedisResult, aio::MultiplexedConnection};
use std::{
    future::Future,
    sync::{Mutex, PoisonError},
};
use tokio::sync::Semaphore;

use crate::stress::redis_client;

pub(super) struct Pool {
    client: Client,
    idle: Mutex<Vec<MultiplexedConnection>>,
    places: Semaphore,
}

impl Pool {
    /// A pool of at most so many connections, shared by so many processes.
    pub(super) fn new(client: Client, most: u32, processes: u32) -> Pool {
        // Fits: at most 300.
        let places = Semaphore::new((most / processes).max(1) as usize);
        Pool { client, idle: Mutex::default(), places }
    }

    /// Lends a connection to a command.
    pub(super) async fn lend<T, C>(
        &self,
        command: impl FnOnce(MultiplexedConnection) -> C,
    ) -> RedisResult<T>
    where
        C: Future<Output = RedisResult<T>>,
    {
        // Never closed, so never refused.
        let _place = self.places.acquire().await;
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => redis_client::connect(&self.client).await?,
        };
        let answer = command(connection.clone()).await;
        if answer.as_ref().err().is_none_or(|error| !error.is_unrecoverable_error()) {
            self.idle().push(connection);
        }
        answer
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        // A push or a pop leaves it whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
