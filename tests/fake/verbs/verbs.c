/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, ports, memory regions and the world, which is the state that all processes share. See
 * fake-verbs.h. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "inside.h"

static struct nic nics[NICS];
static struct nic *list[NICS + 1];
static _Atomic int open_count;
static _Atomic uint64_t registered;
static struct context *contexts;
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct world *the_world;

int setting(const char *name, int fallback)
{
	const char *text = getenv(name);

	return text ? (int)strtol(text, NULL, 10) : fallback;
}

/* Does FAKE_VERBS_HANG ("CALL" or "CALL:NIC") name this call? */
bool call_hangs(const char *call, const struct nic *nic)
{
	const char *text = getenv("FAKE_VERBS_HANG");
	size_t length = strlen(call);

	return text && !strncmp(text, call, length) &&
	       (!text[length] ||
		(text[length] == ':' && nic && !strcmp(text + length + 1, nic->name)));
}

static void call_hang_if_set(const char *call, const struct nic *nic)
{
	while (call_hangs(call, nic))
		pause();
}

void count_open(int by)
{
	atomic_fetch_add(&open_count, by);
}

EXPORT int fake_verbs_open(void)
{
	return atomic_load(&open_count);
}

static void check_closed(void)
{
	if (open_count) {
		fprintf(stderr, "fake libibverbs: %d objects are left open\n", open_count);
		abort();
	}
}

/* ---- the world ------------------------------------------------------------------------------- */

static void world_open(void)
{
	const char *path = getenv("FAKE_VERBS_WORLD"), *names = getenv("FAKE_VERBS");
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	unsigned found = 0;

	if (path && (fd < 0 || ftruncate(fd, sizeof(struct world))))
		abort();
	the_world = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE,
			 path ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
	if (the_world == MAP_FAILED)
		abort();
	if (fd >= 0)
		close(fd);
	while (names && *names && found < NICS) {
		size_t length = strcspn(names, ",");

		snprintf(nics[found].name, sizeof(nics[found].name), "%.*s", (int)length, names);
		nics[found].index = found;
		atomic_store(&nics[found].up, true);
		atomic_store(&nics[found].held, call_hangs("move", &nics[found]));
		list[found] = &nics[found];
		found++;
		names += length + (names[length] == ',');
	}
	atexit(check_closed);
}

struct nic *nic_of(unsigned index)
{
	world_get();
	return &nics[index];
}

struct world *world_get(void)
{
	pthread_once(&once, world_open);
	return the_world;
}

/* Take the lock over from a process that was killed while it held it. */
void world_lock(struct world *world)
{
	pid_t holder = 0;

	while (!atomic_compare_exchange_weak(&world->lock, &holder, getpid())) {
		if (!holder || kill(holder, 0) == 0 || errno != ESRCH)
			holder = 0;
		sched_yield();
	}
}

void world_unlock(struct world *world)
{
	atomic_store(&world->lock, 0);
}

struct world_mr *world_mr(pid_t pid, uint32_t key, uint64_t address, uint64_t length, int right)
{
	struct world_mr *mr = &world_get()->mrs[key % WORLD_MRS];

	if (atomic_load(&mr->pid) != pid || atomic_load(&mr->key) != key || address < mr->address ||
	    length > mr->length || address - mr->address > mr->length - length ||
	    (mr->access & right) != right)
		return NULL;
	return mr;
}

/* ---- devices --------------------------------------------------------------------------------- */

EXPORT struct nic **ibv_get_device_list(int *count)
{
	call_hang_if_set("list", NULL);
	world_get();
	for (*count = 0; list[*count];)
		++*count;
	return list;
}

EXPORT void ibv_free_device_list(struct nic **devices)
{
	if (devices != list)
		abort();
}

EXPORT const char *ibv_get_device_name(struct nic *nic)
{
	return nic->name;
}

EXPORT struct ibv_context *ibv_open_device(struct nic *nic)
{
	struct context *context = calloc(1, sizeof(*context));
	int pipes[2];

	call_hang_if_set("open", nic);
	if (!context || pipe2(pipes, O_CLOEXEC))
		abort();
	context->nic = nic;
	context->opened = -1;
	context->ibv.device = (struct ibv_device *)nic;
	context->ibv.async_fd = pipes[0];
	context->ibv.num_comp_vectors = 1;
	context->async_write = pipes[1];
	context->ibv.ops.poll_cq = rc_poll_cq;
	context->ibv.ops.req_notify_cq = rc_arm;
	context->ibv.ops.post_send = rc_post;
	context->ibv.ops.post_recv = rc_receive;
	pthread_mutex_init(&context->lock, NULL);
	pthread_cond_init(&context->work, NULL);
	if (pthread_create(&context->thread, NULL, context_work, context) ||
	    pthread_create(&context->receiver, NULL, context_receive, context))
		abort();
	pthread_mutex_lock(&contexts_lock);
	context->next = contexts;
	contexts = context;
	pthread_mutex_unlock(&contexts_lock);
	count_open(1);
	return &context->ibv;
}

EXPORT int ibv_close_device(struct ibv_context *ibv)
{
	struct context *context = (struct context *)ibv, **at;

	pthread_mutex_lock(&contexts_lock);
	for (at = &contexts; *at != context; at = &(*at)->next)
		;
	*at = context->next;
	pthread_mutex_unlock(&contexts_lock);
	pthread_mutex_lock(&context->lock);
	context->stop = true;
	pthread_cond_broadcast(&context->work);
	pthread_mutex_unlock(&context->lock);
	world_wake(world_get());
	pthread_join(context->thread, NULL);
	pthread_join(context->receiver, NULL);
	if (context->qps)
		abort();
	if (context->opened >= 0)
		close(context->opened);
	close(context->ibv.async_fd);
	if (context->async_write >= 0)
		close(context->async_write);
	pthread_mutex_destroy(&context->lock);
	pthread_cond_destroy(&context->work);
	free(context);
	count_open(-1);
	return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
	const char *most = getenv("FAKE_VERBS_MR");

	(void)context;
	memset(out, 0, sizeof(*out));
	out->max_mr_size = most ? strtoull(most, NULL, 10) : UINT64_MAX;
	out->phys_port_cnt = 1;
	out->max_qp = WORLD_QPS;
	out->max_qp_wr = QP_ROOM;
	out->max_sge = setting("FAKE_VERBS_SGE", SGES);
	out->max_cqe = 1 << 20;
	out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
	return 0;
}

bool link_is_infiniband(void)
{
	const char *link = getenv("FAKE_VERBS_LINK");

	return link && !strcmp(link, "infiniband");
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out)
{
	const struct nic *nic = context ? ((struct context *)context)->nic : NULL;

	if (!nic || port != 1)
		return EINVAL;
	/* Like the real function, does not set the last field. */
	memset(out, 0, offsetof(struct ibv_port_attr, port_cap_flags2));
	out->state = atomic_load(&nic->up) ? IBV_PORT_ACTIVE : 1;
	out->max_mtu = 5;
	out->active_mtu = 3;
	out->gid_tbl_len = 8;
	out->max_msg_sz = 1u << 31;
	out->pkey_tbl_len = 2;
	out->link_layer = link_is_infiniband() ? IBV_LAYER_INFINIBAND : IBV_LAYER_ETHERNET;
	out->lid = link_is_infiniband() ? (uint16_t)(nic->index + 1) : 0;
	return 0;
}

EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, uint16_t *out)
{
	(void)context;
	if (port != 1 || index < 0 || index > 1)
		return -1;
	*out = htons(index ? (uint16_t)setting("FAKE_VERBS_PKEY", 0xffff) : 0x7fff);
	return 0;
}

void nic_gid(const struct nic *nic, unsigned index, struct ibv_gid_entry *out)
{
	const char *gids = getenv("FAKE_VERBS_GIDS");
	char text[256], *at, *entry, *rest = NULL;

	if (link_is_infiniband())
		snprintf(text, sizeof(text), "0/fe80::%x", nic->index + 1);
	else if (gids)
		snprintf(text, sizeof(text), "%s", gids);
	else
		snprintf(text, sizeof(text), "2/fe80::%x,2/::ffff:10.%d.0.%u", nic->index + 1,
			 77 + (int)nic->index % setting("FAKE_VERBS_NETWORKS", 1), nic->index + 1);
	memset(out, 0, sizeof(*out));
	out->gid_index = index;
	out->port_num = 1;
	for (at = text; (entry = strtok_r(at, ",", &rest)); at = NULL) {
		if (index--)
			continue;
		out->gid_type = (uint32_t)(entry[0] - '0');
		if (inet_pton(AF_INET6, entry + 2, out->gid.raw) != 1)
			abort();
		return;
	}
}

EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
			     struct ibv_gid_entry *out, uint32_t flags, size_t size)
{
	static const uint8_t empty[16];

	if (port != 1 || index >= 8 || flags || size != sizeof(*out))
		return EINVAL;
	nic_gid(((struct context *)context)->nic, index, out);
	return memcmp(out->gid.raw, empty, 16) ? 0 : ENODATA;
}

EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *out)
{
	struct ibv_gid_entry entry;

	if (port != 1 || index < 0 || index >= 8)
		return -1;
	nic_gid(((struct context *)context)->nic, (unsigned)index, &entry);
	*out = entry.gid;
	return 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *out)
{
	return read(context->async_fd, out, sizeof(*out)) == sizeof(*out) ? 0 : -1;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	(void)event;
}

EXPORT void fake_verbs_port(unsigned nic, bool up)
{
	struct ibv_async_event event = { .event_type =
						 up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR };

	world_get();
	event.element.port_num = 1;
	atomic_store(&nics[nic].up, up);
	pthread_mutex_lock(&contexts_lock);
	for (struct context *c = contexts; c; c = c->next)
		if (c->nic == &nics[nic] && c->async_write >= 0 &&
		    write(c->async_write, &event, sizeof(event)) < 0)
			abort();
	pthread_mutex_unlock(&contexts_lock);
}

EXPORT void fake_verbs_remove(unsigned nic)
{
	struct ibv_async_event event = { .event_type = IBV_EVENT_DEVICE_FATAL };

	world_get();
	atomic_store(&nics[nic].up, false);
	pthread_mutex_lock(&contexts_lock);
	for (struct context *c = contexts; c; c = c->next) {
		if (c->nic != &nics[nic] || c->async_write < 0)
			continue;
		if (write(c->async_write, &event, sizeof(event)) < 0)
			abort();
		close(c->async_write);
		c->async_write = -1;
		rc_removed(c);
	}
	pthread_mutex_unlock(&contexts_lock);
}

/* ---- memory ---------------------------------------------------------------------------------- */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		abort();
	pd->context = context;
	count_open(1);
	return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	count_open(-1);
	return 0;
}

static _Atomic int refuse_error;
static _Atomic unsigned refuse_after;
static _Atomic uint64_t count_all, count_dma_bufs, count_relaxed;

EXPORT void fake_verbs_refuse(int error, unsigned after)
{
	atomic_store(&refuse_after, after);
	atomic_store(&refuse_error, error);
}

EXPORT void fake_verbs_registrations(uint64_t *all, uint64_t *dma_bufs, uint64_t *relaxed)
{
	*all = atomic_load(&count_all);
	*dma_bufs = atomic_load(&count_dma_bufs);
	*relaxed = atomic_load(&count_relaxed);
}

/* The errno of fake_verbs_refuse() for this registration, or 0. */
static int mr_refused(void)
{
	int error = atomic_load(&refuse_error);

	if (error && atomic_fetch_sub(&refuse_after, 1) == 0) {
		atomic_store(&refuse_error, 0);
		return error;
	}
	return 0;
}

/* Is the memory mapped, and not without rights, as a GPU's? Checks the first and the last byte
 * only: a pipe reports a bad address, also under qemu-user, which has no process_vm_readv. By
 * syscall(), because the thread sanitizer takes write() for a use of bytes that others write
 * meanwhile. */
static bool memory_is_readable(const void *address, size_t length)
{
	const char *last = (const char *)address + length - 1;
	bool good;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return false;
	good = syscall(SYS_write, ends[1], address, 1) == 1 &&
	       syscall(SYS_write, ends[1], last, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return good;
}

/* A new descriptor of the fake CUDA driver's memory at an address; -1: not its memory. */
static int cuda_memory(const void *address, size_t length, size_t *offset)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*find)(uint64_t, size_t, size_t *) =
		library ?
			(int (*)(uint64_t, size_t, size_t *))dlsym(library, "fake_cuda_memory_fd") :
			NULL;
	int fd = find ? find((uintptr_t)address, length, offset) : -1;

	if (library)
		dlclose(library);
	return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static struct ibv_mr *mr_new(struct ibv_pd *pd, uint64_t address, size_t length, int access, int fd,
			     uint64_t offset)
{
	struct world *world = world_get();
	struct ibv_mr *mr = NULL;

	world_lock(world);
	for (unsigned i = 0; i < WORLD_MRS && !mr; i++) {
		struct world_mr *entry = &world->mrs[i];
		pid_t pid = atomic_load(&entry->pid);

		if (pid && (kill(pid, 0) == 0 || errno != ESRCH))
			continue;
		mr = calloc(1, sizeof(*mr));
		if (!mr)
			abort();
		entry->address = address;
		entry->length = length;
		entry->access = access;
		entry->fd = fd;
		entry->offset = offset;
		mr->rkey = mr->lkey = ++entry->generation * WORLD_MRS + i;
		atomic_store(&entry->key, mr->rkey);
		atomic_store(&entry->pid, getpid());
	}
	world_unlock(world);
	if (!mr) {
		if (fd >= 0)
			close(fd);
		errno = ENOMEM;
		return NULL;
	}
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = (void *)(uintptr_t)address;
	mr->length = length;
	atomic_fetch_add(&registered, length);
	atomic_fetch_add(&count_all, 1);
	if (access & IBV_ACCESS_RELAXED_ORDERING)
		atomic_fetch_add(&count_relaxed, 1);
	count_open(1);
	return mr;
}

/* The checks of both kinds of registration. 0 or an errno. */
static int mr_check(size_t length, int access)
{
	const char *memlock = getenv("FAKE_VERBS_MEMLOCK"), *most = getenv("FAKE_VERBS_MR");

	if (memlock && atomic_load(&registered) + length > strtoull(memlock, NULL, 10))
		return ENOMEM;
	if (!length || (most && length > strtoull(most, NULL, 10)) ||
	    ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) ||
	    access & ~(7 | IBV_ACCESS_RELAXED_ORDERING))
		return EINVAL;
	return mr_refused();
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length,
				       uint64_t iova, unsigned int access)
{
	size_t offset = 0;
	int fd;

	errno = iova != (uintptr_t)address ? EINVAL : mr_check(length, (int)access);
	if (errno)
		return NULL;
	fd = cuda_memory(address, length, &offset);
	if (fd >= 0 && !setting("FAKE_VERBS_PEERMEM", 0)) {
		close(fd);
		fd = -1;
	} else if (fd >= 0) {
		return mr_new(pd, iova, length, (int)access, fd, offset);
	}
	if (!memory_is_readable(address, length)) {
		errno = EFAULT;
		return NULL;
	}
	return mr_new(pd, iova, length, (int)access, -1, 0);
}

/* The older call does not accept optional access flags. */
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	if (access & IBV_ACCESS_RELAXED_ORDERING) {
		errno = EINVAL;
		return NULL;
	}
	return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned int)access);
}

/* Does FAKE_VERBS_NO_DMABUF name this NIC? */
static bool nic_refuses_dma_bufs(const struct ibv_pd *pd)
{
	const char *name = getenv("FAKE_VERBS_NO_DMABUF");

	return name && !strcmp(name, ((struct context *)pd->context)->nic->name);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					uint64_t iova, int fd, int access)
{
	int can = nic_refuses_dma_bufs(pd) ? EOPNOTSUPP : setting("FAKE_VERBS_DMABUF", EBADF);
	off_t start, size;

	if (fd >= 0)
		call_hang_if_set("register", ((struct context *)pd->context)->nic);
	errno = can != EBADF || fd < 0 ? can :
		fcntl(fd, F_GETFD) < 0 ? EINVAL :
					 setting("FAKE_VERBS_REGISTER", 0);
	if (!errno)
		errno = mr_check(length, access);
	if (errno)
		return NULL;
	/* The file position is the start of the exported range: see fake-control.h. */
	start = lseek(fd, 0, SEEK_CUR);
	size = lseek(fd, 0, SEEK_END);
	lseek(fd, start, SEEK_SET);
	if ((iova ^ offset) % 4096 || start < 0 ||
	    (uint64_t)start + offset + length > (uint64_t)size) {
		errno = EINVAL;
		return NULL;
	}
	atomic_fetch_add(&count_dma_bufs, 1);
	return mr_new(pd, iova, length, access, fcntl(fd, F_DUPFD_CLOEXEC, 0),
		      (uint64_t)start + offset);
}

/* Once this returns, no NIC accesses the memory. */
EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct world *world = world_get();
	struct world_mr *entry = &world->mrs[mr->rkey % WORLD_MRS];
	int fd;

	world_lock(world);
	fd = entry->fd;
	atomic_store(&entry->key, 0);
	atomic_store(&entry->pid, 0);
	world_unlock(world);
	if (fd >= 0)
		close(fd);
	atomic_fetch_sub(&registered, mr->length);
	free(mr);
	count_open(-1);
	return 0;
}
