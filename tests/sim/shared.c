/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of one host share: memfds and their mappings, and what one process may do
 * to another: process_vm, pidfds. The memfds are real ones, since all nodes are in this process.
 *
 * A node that has crashed goes on for a while, to free what it has. From its crash on its mappings
 * are private, so that it changes nothing that others see. Addresses that were unmapped are never
 * used again: whoever still touches them faults. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"
#include "util/process.h"
#include "world.h"

#define PID_FIRST 1000
#define COPY_PIECE 4096 /* bytes; between two, other threads may run */

struct shared {
	int real, references;
};

struct mapping {
	struct mapping *next;
	char *base;
	size_t length;
	int node, prot;
	struct shared *shared;
};

static struct mapping *mappings;

/* ---- memfds ---------------------------------------------------------------------------------- */

void shared_hold(struct shared *shared)
{
	shared->references++;
}

void shared_release(struct shared *shared)
{
	if (--shared->references)
		return;
	close(shared->real);
	free(shared);
}

static uint32_t shared_events(const struct descriptor *descriptor)
{
	(void)descriptor;
	return EPOLLIN | EPOLLOUT;
}

static void shared_close(struct descriptor *descriptor)
{
	shared_release(descriptor->shared);
}

static const struct descriptor_kind kind_shared = {
	.name = "memfd",
	.events = shared_events,
	.close = shared_close,
};

int shared_open(struct shared *shared)
{
	struct descriptor *descriptor = descriptor_new(&kind_shared);

	shared_hold(shared);
	descriptor->shared = shared;
	return descriptor->fd;
}

/* The descriptor takes the real one over. */
static int shared_new(const char *call, int real)
{
	struct shared *shared = calloc(1, sizeof(*shared));
	int fd;

	if (real < 0)
		sim_die("%s: %s", call, strerror(errno));
	shared->real = real;
	shared->references = 1;
	fd = shared_open(shared);
	shared_release(shared);
	return (int)call_result(call, -1, fd);
}

/* The real descriptor behind a simulated one, or a real one itself; -1: errno is set. */
static int real_of(const char *call, int fd)
{
	const struct descriptor *descriptor = descriptor_of(fd);

	if (descriptor_is_real(fd))
		return fd;
	call_point(call, (uint64_t)fd);
	if (descriptor && descriptor->shared)
		return descriptor->shared->real;
	return (int)call_failed(call, fd, descriptor ? EINVAL : EBADF);
}

static bool lacks_memory(void)
{
	int self = node_self();

	return self >= 0 && node_of(self)->memory_until > sim_time &&
	       (int)sim_draw_world(100000) < sim_options.malloc_fails;
}

int sim_memfd_create(const char *name, unsigned flags)
{
	call_point("memfd_create", flags);
	if (node_lacks_descriptors())
		return (int)call_failed("memfd_create", -1, EMFILE);
	return shared_new("memfd_create", memfd_create(name, flags));
}

int sim_ftruncate(int fd, off_t length)
{
	int real;

	if (disk_has(fd))
		return disk_truncate(fd, length);
	real = real_of("ftruncate", fd);
	if (real < 0)
		return -1;
	if (lacks_memory())
		return (int)call_failed("ftruncate", fd, ENOMEM);
	return ftruncate(real, length);
}

int sim_fchmod(int fd, mode_t mode)
{
	int real;

	if (disk_has(fd))
		return disk_chmod(fd, mode);
	if (folder_has(fd))
		return folder_chmod(fd, mode);
	real = real_of("fchmod", fd);
	return real < 0 ? -1 : fchmod(real, mode);
}

int sim_fstat(int fd, struct stat *out)
{
	const struct descriptor *descriptor = descriptor_of(fd);
	int real;

	if (descriptor && descriptor->file)
		return disk_stat(descriptor->file, out);
	if (folder_stat(fd, out))
		return 0;
	real = real_of("fstat", fd);
	return real < 0 ? -1 : fstat(real, out);
}

int sim_fcntl(int fd, int command, ...)
{
	struct descriptor *descriptor = descriptor_of(fd);
	va_list arguments;
	long argument;
	int real;

	va_start(arguments, command);
	argument = va_arg(arguments, long);
	va_end(arguments);
	if (descriptor && command == F_DUPFD_CLOEXEC) {
		call_point("fcntl", (uint64_t)fd);
		if (node_lacks_descriptors())
			return (int)call_failed("fcntl", fd, EMFILE);
		return (int)call_result("fcntl", fd, descriptor_copy(descriptor)->fd);
	}
	if (descriptor && descriptor->file && command == F_GETFL)
		return descriptor->flags;
	/* Nothing blocks in the world but what says so. */
	if (descriptor && !descriptor->shared)
		return 0;
	real = real_of("fcntl", fd);
	return real < 0 ? -1 : fcntl(real, command, argument);
}

int sim_dup3(int fd, int at, int flags)
{
	struct descriptor *from = descriptor_of(fd), *to = descriptor_of(at);

	call_point("dup3", (uint64_t)fd);
	if (!from || !to || fd == at)
		sim_die("dup3(%d, %d, %d)", fd, at, flags);
	descriptor_replace(to, from);
	return (int)call_result("dup3", fd, at);
}

/* A memfd may be opened again through /proc; all else is real. */
int sim_open(const char *path, int flags, ...)
{
	static const char links[] = "/proc/self/fd/";
	char real_path[64];
	int fd, real, mode;
	va_list arguments;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, int) : 0;
	va_end(arguments);
	if (strncmp(path, "/sim/", 5) == 0)
		return disk_open(path, flags);
	if (path_is_disk(path))
		return names_open(path, flags);
	if (strncmp(path, links, sizeof(links) - 1) != 0)
		return open(path, flags, mode);
	fd = atoi(path + sizeof(links) - 1);
	real = real_of("open", fd);
	if (real < 0)
		return -1;
	if (node_lacks_descriptors())
		return (int)call_failed("open", fd, EMFILE);
	snprintf(real_path, sizeof(real_path), "%s%d", links, real);
	return shared_new("open", open(real_path, flags));
}

/* ---- mappings -------------------------------------------------------------------------------- */

void *sim_mmap(void *at, size_t length, int prot, int flags, int fd, off_t offset)
{
	int real = fd < 0 ? -1 : real_of("mmap", fd);
	struct mapping *mapping;
	char *base;

	if (fd < 0 || descriptor_is_real(fd))
		return mmap(at, length, prot, flags, fd, offset);
	if (real < 0)
		return MAP_FAILED;
	if (lacks_memory()) {
		call_failed("mmap", fd, ENOMEM);
		return MAP_FAILED;
	}
	if (!node_of(node_self())->alive)
		flags = (flags & ~MAP_SHARED) | MAP_PRIVATE;
	base = mmap(at, length, prot, flags, real, offset);
	if (base == MAP_FAILED)
		return base;
	mapping = malloc(sizeof(*mapping));
	*mapping = (struct mapping){ mappings,    base, length,
				     node_self(), prot, descriptor_of(fd)->shared };
	shared_hold(mapping->shared);
	mappings = mapping;
	node_of(mapping->node)->mappings++;
	call_result("mmap", fd, 0);
	return base;
}

int sim_munmap(void *base, size_t length)
{
	for (struct mapping **at = &mappings; *at; at = &(*at)->next) {
		struct mapping *mapping = *at;

		if (mapping->base != base)
			continue;
		if (mapping->length != length)
			sim_fail("mapping", "munmap() of %zu bytes of %zu", length,
				 mapping->length);
		*at = mapping->next;
		node_of(mapping->node)->mappings--;
		shared_release(mapping->shared);
		free(mapping);
		break;
	}
	/* Keep the addresses. */
	return mmap(base, length, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED ?
		       -1 :
		       0;
}

void shared_crash(int node)
{
	for (struct mapping *m = mappings; m; m = m->next)
		if (m->node == node && mmap(m->base, m->length, m->prot, MAP_PRIVATE | MAP_FIXED,
					    m->shared->real, 0) == MAP_FAILED)
			sim_die("a mapping of node %d cannot be made private", node);
}

/* In place of libwherry's own, which calls.txt makes weak: a copy takes time, and others run. What
 * programs may poll is copied at once, and so is what overlaps. */
void wh_copy_bytes(char *to, const char *from, size_t length, bool non_temporal);
void wh_copy_bytes(char *to, const char *from, size_t length, bool non_temporal)
{
	uintptr_t distance = (uintptr_t)to - (uintptr_t)from;

	(void)non_temporal;
	while (length > sizeof(uint64_t) && distance >= length && -distance >= length &&
	       sim_chance(sim_options.copy_pauses)) {
		size_t piece = 1 + sim_draw_world(length < COPY_PIECE ? length : COPY_PIECE);

		memcpy(to, from, piece);
		to += piece;
		from += piece;
		length -= piece;
		call_point("copy", length);
		fiber_yield();
	}
	memmove(to, from, length);
}

/* ---- other processes ------------------------------------------------------------------------- */

pid_t node_pid(int node)
{
	return PID_FIRST + node;
}

/* The node of a process that this one can see. -1: none. */
static int node_with_pid(pid_t pid)
{
	int node = pid - PID_FIRST, self = node_self();

	return node >= 0 && node < node_count() && self >= 0 &&
			       node_of(node)->host == node_of(self)->host ?
		       node :
		       -1;
}

bool process_runs(int node)
{
	return node_of(node)->alive && !node_of(node)->exited;
}

/* These two in place of libwherry's own, which the build makes weak: each host, each time that its
 * power is back, is a space of its own. */
static uint64_t process_space(int node)
{
	return (uint64_t)node_of(node)->host << 32 | (node_of(node)->boot + 1);
}

void wh_process_identify(struct wh_process *out)
{
	int self = node_self();

	*out = (struct wh_process){ process_space(self), node_pid(self), 1 };
}

bool wh_process_has_ended(const struct wh_process *process)
{
	return process->space == process_space(node_self()) &&
	       !process_runs((int)process->pid - PID_FIRST);
}

static uint32_t process_events(const struct descriptor *descriptor)
{
	return process_runs(descriptor->process) ? 0 : EPOLLIN;
}

static const struct descriptor_kind kind_process = {
	.name = "pidfd",
	.events = process_events,
};

int process_open(const char *call, int node)
{
	struct descriptor *descriptor;

	if (node_lacks_descriptors())
		return (int)call_failed(call, -1, EMFILE);
	descriptor = descriptor_new(&kind_process);
	descriptor->process = node;
	return (int)call_result(call, -1, descriptor->fd);
}

long process_open_pid(pid_t pid)
{
	int node = node_with_pid(pid);

	call_point("pidfd_open", (uint64_t)pid);
	if (node < 0 || !process_runs(node))
		return call_failed("pidfd_open", pid, ESRCH);
	return process_open("pidfd_open", node);
}

/* The kernel checks the right to it before it looks at an address, and stops at an extent that it
 * cannot copy. */
static ssize_t process_move(const char *call, pid_t pid, const struct iovec *local,
			    unsigned long local_count, const struct iovec *remote,
			    unsigned long remote_count)
{
	int node = node_with_pid(pid);
	ssize_t moved;

	call_point(call, (uint64_t)pid);
	if (node < 0 || !process_runs(node) || !node_of(node_self())->alive)
		return call_failed(call, pid, ESRCH);
	/* A process may always move its own memory. */
	if (node != node_self() && sim_chance(sim_options.vm_refused))
		return call_failed(call, pid, EPERM);
	if (local_count > 1 && local_count == remote_count && sim_chance(sim_options.short_read))
		local_count = remote_count = 1 + sim_draw_world(local_count - 1);
	moved = call[11] == 'r' ?
			process_vm_readv(getpid(), local, local_count, remote, remote_count, 0) :
			process_vm_writev(getpid(), local, local_count, remote, remote_count, 0);
	return moved < 0 ? call_failed(call, pid, errno) : call_result(call, pid, moved);
}

ssize_t sim_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
			     const struct iovec *remote, unsigned long remote_count,
			     unsigned long flags)
{
	(void)flags;
	return process_move("process_vm_readv", pid, local, local_count, remote, remote_count);
}

ssize_t sim_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
			      const struct iovec *remote, unsigned long remote_count,
			      unsigned long flags)
{
	(void)flags;
	return process_move("process_vm_writev", pid, local, local_count, remote, remote_count);
}
