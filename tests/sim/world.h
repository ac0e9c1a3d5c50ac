/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the world know of each other: threads, events, nodes, descriptors, streams. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "sim.h"

#define sim_die(...)                                                                               \
	do {                                                                                       \
		fprintf(stderr, "the simulation itself: " __VA_ARGS__);                            \
		fprintf(stderr, "\n");                                                             \
		sim_dump();                                                                        \
		abort();                                                                           \
	} while (0)

/* ---- threads --------------------------------------------------------------------------------- */

/* A thread of a simulated process: a stack of its own, on which the one real thread runs. */
struct fiber {
	int id, node;
	char name[32];
	void *(*run)(void *);
	void *arg, *result;
	bool done;
	/* while it does not run */
	void *top, *stack, *fake;
	char *tls;
	int saved_errno;
	/* while it sleeps */
	bool blocked, timed_out, decided;
	bool polls; /* `ready` looks at descriptors of its node alone */
	bool (*ready)(const struct fiber *fiber);
	const void *on;
	int64_t value, deadline; /* INT64_MAX: none */
	bool woken; /* from a condition variable or futex */
	const char *why;
	uint64_t version; /* of its node, when `ready` looked last */
	int64_t late_until; /* its CPU does other things */
	/* while it runs */
	void *robust; /* its list of robust futexes: struct robust_list_head */
	int run_length; /* calls since it was switched to */
	int fruitless; /* polls in a row that found nothing */
	int awake; /* calls since it slept, or moved a byte */
	bool spun;
	int pauses; /* that were made for it, while it polled in vain */
};

extern struct fiber *sim_current; /* NULL: the scheduler, and before the world begins */

/* Sleep until `ready` or the deadline. False: the deadline. */
bool fiber_block(bool (*ready)(const struct fiber *), const void *on, int64_t value,
		 int64_t deadline, const char *why);
/* The same for a `ready` that looks at descriptors of the thread's node alone. */
bool fiber_poll(bool (*ready)(const struct fiber *), const void *on, int64_t value,
		int64_t deadline, const char *why);
bool fiber_woken(const struct fiber *fiber);
void fiber_yield(void);
/* Wake who sleeps on an address: one, or all. */
void fiber_wake(const void *on, bool all);
/* The threads of a node, one after the other; NULL first and last. */
struct fiber *fiber_next(int node, const struct fiber *after);
struct fiber *fiber_find(int id); /* NULL: ended */
int fiber_self(void);
void fiber_rename(int id, const char *name);
void *fiber_join(int id);

/* fiber.c: the switch itself */
void fiber_setup(void);
void fiber_prepare(struct fiber *fiber);
void fiber_enter(struct fiber *fiber);
void fiber_leave(struct fiber *fiber);
void fiber_end(struct fiber *fiber);
void fiber_print_stack(void);

/* ---- events, calls --------------------------------------------------------------------------- */

void event_at(int64_t when, void (*run)(void *), void *arg);
/* A call of libwherry's: it takes some time, and another thread may run. */
void call_point(const char *call, uint64_t argument);
/* What a call returned, or the error with which it failed: kept in the hash and the trace. */
long call_result(const char *call, int fd, long value);
long call_failed(const char *call, int fd, int error);
long call_done(const char *call, int fd, long value); /* value: a result, or a negative errno */
/* A poll found nothing. Who polls again and again is noted, and lets time pass. */
void call_fruitless(void);
void hash_word(uint64_t value);
void hash_bytes(const void *bytes, size_t length);

/* ---- nodes ----------------------------------------------------------------------------------- */

struct node {
	int host;
	unsigned boot; /* of the host: how often its power had failed */
	bool alive;
	bool exited; /* its program has ended by itself */
	int64_t stalled_until, stalled_total, descriptors_until, memory_until;
	int descriptors, descriptors_fail; /* per mille, until then */
	int mappings;
	int next_port;
	uint64_t allocations, failing_allocation; /* 0: none */
	size_t failing_size; /* malloc() has no memory of just this size; 0: any */
	uint64_t version; /* changes with the state of any of its descriptors */
};

struct node *node_of(int id);
int node_count(void);
int node_self(void); /* of the running thread; -1: none */
int node_at(int host); /* the newest; -1: none */
bool node_is_down(int host); /* its power has failed */
pid_t node_pid(int node);
bool process_runs(int node);
bool node_lacks_descriptors(void);
void node_changed(int id); /* whoever polls there looks again */

/* ---- streams of the network ------------------------------------------------------------------ */

struct segment {
	struct segment *next;
	int64_t at;
	size_t length, done;
	bool fin;
	uint8_t bytes[];
};

struct address {
	int host; /* -1: any, or none */
	uint16_t port;
};

/* One end of a connection, or a socket that is none yet. */
struct end {
	enum { END_FRESH, END_CONNECTING, END_OPEN, END_LISTENS } state;
	int node, number, family;
	struct address own, other;
	struct end *peer;
	struct end *next; /* of all */
	int ordinal; /* of the connections between the two hosts that this one opened */
	bool initiator;
	bool closed; /* by the program, or its node is gone */
	bool vanished; /* with its node; nothing was sent */
	/* what has arrived */
	uint8_t *in;
	size_t in_start, in_length, in_room, rcvbuf;
	bool fin, shut_in, shut_out, reset;
	int error;
	/* what is on its way to the other end */
	struct segment *head, **tail;
	size_t pipe, sndbuf;
	uint64_t sent;
	int64_t last, stuck_since, rto, armed, black_until, window_closed_since;
	bool window_closed;
	int64_t user_timeout, keepidle;
	bool keepalive;
	int syns;
	/* of a listener: to be accepted */
	struct end *waiting[64];
	int waiting_count, backlog;
	uint32_t edges; /* grows with each change, for EPOLLET */
};

struct end *end_new(int node, int family);
void end_connect(struct end *end, struct address to);
bool end_bind(struct end *end, uint16_t port); /* false: somebody listens there */
void end_listen(struct end *end, int backlog);
struct end *end_accept(struct end *listener); /* NULL: ECONNABORTED */
void end_close(struct end *end);
void end_shut(struct end *end, bool in, bool out);
void end_keep_alive(struct end *end);
uint32_t end_events(const struct end *end);
/* The number of bytes, or a negative errno. */
long end_write(struct end *end, const struct iovec *parts, size_t count);
long end_read(struct end *end, const struct iovec *parts, size_t count, bool peek);
void end_changed(struct end *end);
void network_crash(int node, bool silent);
/* Both hosts are up, and packets of one reach the other. */
bool network_reaches(int from_host, int to_host);

/* ---- descriptors ----------------------------------------------------------------------------- */

#define DESCRIPTOR_FIRST (1 << 20) /* lower ones are the real process's */

struct descriptor;

/* What descriptors of a kind do. */
struct descriptor_kind {
	const char *name;
	uint32_t (*events)(const struct descriptor *descriptor);
	long (*read)(struct descriptor *descriptor, void *bytes, size_t length);
	long (*write)(struct descriptor *descriptor, const void *bytes, size_t length);
	void (*close)(struct descriptor *descriptor);
};

struct descriptor {
	const struct descriptor_kind *kind;
	int fd, node;
	struct end *end;
	struct local *local;
	struct shared *shared;
	struct file *file;
	struct name *folder; /* an open directory of a disk */
	int flags; /* of open(), for files and directories */
	int process; /* pidfd: the node */
	uint64_t count; /* eventfd; of a NIC: events that wait */
	int64_t due; /* timerfd; 0: not armed */
	struct watch *watches; /* epoll */
	int watch_count, watch_room;
	int watched; /* how many watches look at it */
	uint32_t edges;
};

extern const struct descriptor_kind kind_stream, kind_event, kind_timer, kind_epoll;

struct descriptor *descriptor_new(const struct descriptor_kind *kind);
/* NULL: not open, or of the real process: descriptor_is_real(). */
struct descriptor *descriptor_of(int fd);
static inline bool descriptor_is_real(int fd)
{
	return fd >= 0 && fd < DESCRIPTOR_FIRST;
}
void descriptor_changed(struct descriptor *descriptor);
void descriptor_close(struct descriptor *descriptor);
/* Another descriptor of the same unix socket or memfd. */
struct descriptor *descriptor_copy(const struct descriptor *from);
/* Close what `to` is and make it the same as `from`. */
void descriptor_replace(struct descriptor *to, const struct descriptor *from);
bool descriptor_is_local(int fd);

/* ---- unix sockets: local.c ------------------------------------------------------------------- */

struct sockaddr;
struct msghdr;
struct local;

extern const struct descriptor_kind kind_local;

void local_hold(struct local *local);
void local_release(struct local *local);
uint32_t local_edges(const struct local *local);
/* The process has died: its ends hang up, and do nothing any more. */
void local_crash(int node);

/* Calls on unix sockets. */
int local_socket(int type);
int local_bind(int fd, const struct sockaddr *address, socklen_t length);
int local_listen(int fd, int backlog);
int local_connect(int fd, const struct sockaddr *address, socklen_t length);
int local_accept(int fd, struct sockaddr *address, socklen_t *length);
int local_name(const char *call, int fd, struct sockaddr *address, socklen_t *length);
int local_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int local_setsockopt(int fd, int level, int name, const void *value);
int local_shutdown(int fd);
ssize_t local_send(int fd, const struct msghdr *message, int flags);
ssize_t local_receive(int fd, struct msghdr *out, int flags);

/* ---- shared memory: shared.c ----------------------------------------------------------------- */

/* A memfd. */
struct shared;

void shared_hold(struct shared *shared);
void shared_release(struct shared *shared);
/* A descriptor of it, for the running node. */
int shared_open(struct shared *shared);
/* The process has died: its mappings become private. */
void shared_crash(int node);
/* A pidfd of a node; -1: errno is set. */
int process_open(const char *call, int node);
long process_open_pid(pid_t pid);

/* ---- disks: disk.c, names.c ------------------------------------------------------------------ */

struct file {
	struct file *next;
	int host, disk;
	uint64_t number; /* of its inode */
	char path[64];
	uint8_t *bytes;
	size_t size;
	/* of files that have names: what a power failure leaves for sure, and more */
	bool named;
	uint8_t *synced;
	size_t synced_size;
	unsigned mode;
	int64_t mtime; /* ns */
};
struct name;
struct stat;
struct open_how;

int disk_open(const char *path, int flags);
int disk_stat(const struct file *file, struct stat *out);
void disk_heal(void);
struct descriptor *disk_descriptor(struct file *file);
/* Wait for the disk; NULL: for any. 0, or the error that it reports. A process that has died does
 * nothing. */
int disk_wait(const struct file *file, bool writes);
int disk_truncate(int fd, off_t length);
int disk_chmod(int fd, mode_t mode);
static inline bool disk_has(int fd)
{
	const struct descriptor *descriptor = descriptor_of(fd);

	return descriptor && descriptor->file;
}
/* What is not synced may be gone. */
void disk_lose_power(int host);

struct file *file_new_named(int host);
void file_resize(struct file *file, size_t size);
void file_synced(struct file *file);

bool path_is_disk(const char *path);
int names_open(const char *path, int flags);
long names_openat2(int fd, const char *name, const struct open_how *how);
void names_lose_power(int host);
/* How many names lead to it. */
unsigned file_links(const struct file *file);
/* False: it is no open directory of a disk. */
bool folder_stat(int fd, struct stat *out);
bool folder_has(int fd);
int folder_chmod(int fd, mode_t mode);
int folder_set_time(int fd, int64_t mtime);

/* The threads of a node have died: mark the robust futexes that they hold. */
void threads_crash(int node);

/* A process has died: its GPUs do nothing for it any more. */
void gpu_crash(int node);

/* ---- libraries that the world has: nic-verbs.c, gpu-driver.c, registry.c --------------------- */

/* The handle of a library; NULL: not this one. */
void *nic_library(const char *path);
void *gpu_library(const char *path);
void *registry_library(const char *path);
/* A function of it; NULL: there is none. */
void *nic_function(const void *handle, const char *name);
void *gpu_function(const void *handle, const char *name);
void *registry_function(const void *handle, const char *name);

#endif
