/* SPDX-License-Identifier: Apache-2.0 */
/* hostile-gpu.c: hostile use of the unix socket that carries handles of GPU memory
 *
 * Requests that an owner has to survive, and answers that an initiator must not believe. */
#include "lib/gpu.h"
#include "lib/raw.h"
#include "lib/windows.h"
#include "transport/shm/wire.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LENGTH (4 * MIB)
#define REGION (UINT64_C(7) << 32 | 77)
#define ADDRESS UINT64_C(0x700000000000)

/* ---- to the owner ------------------------------------------------------ */

static int greet_shm(const struct wh_hello *welcome)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, welcome), answer;
	int fd = raw_unix(welcome->socket);

	want_true(fd >= 0, "there is no unix socket");
	want(0, raw_greet(fd, &hello, &answer));
	return fd;
}

static int ask(int fd, uint64_t id, uint32_t segment)
{
	uint8_t bytes[WH_MAP_SIZE];

	wh_put32(wh_put64(bytes, id), segment);
	return raw_send_frame(fd, WH_FRAME_MAP, 0, bytes, sizeof(bytes));
}

/* Receive the owner's answer for a segment; returns its error. */
static int answer_of(int fd, struct wh_exported *exported)
{
	uint8_t bytes[WH_EXPORTED_MAX];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	want_true(length > 0, "no answer");
	if (frame.type == WH_FRAME_MAPPED)
		return -(int)wh_get32(bytes + 8);
	want(WH_FRAME_EXPORTED, frame.type);
	want(0, wh_exported_decode(bytes, (size_t)length, exported));
	return exported->error;
}

/* Send something: a long silence would end the session, and these tests take long. */
static void be_heard(int control)
{
	want(0, raw_send_frame(control, WH_FRAME_PING, 0, "12345678", 8));
}

/* The owner lives and serves the well-behaved peer. */
static void want_well(struct gpu_pair *p)
{
	static uint64_t seed = 1;
	struct wh_batch *batch = gpu_pair_batch(p, WH_WRITE);

	want_true(child_alive(p->child), "it has died");
	gpu_pair_fill(p, ++seed);
	want(0, gpu_run(batch));
	want_true(gpu_pair_copied(p, seed), "its memory is wrong");
	want(0, wh_batch_free(batch));
}

static void owner__asked_for_nonsense(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	static const struct child_options patient = { .config = { "timeout=30000" } };

	(void)state;
	harness_limit(60);
	for (unsigned int k = 0; k < 2; k++) {
		struct wh_exported exported;
		struct wh_hello welcome;
		struct gpu_pair p;
		uint64_t none;
		uint8_t garbage[64];
		int control, fd;

		gpu_pair_open_with(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[k], "cuda:0", LENGTH,
				   child_start(&patient));
		child_region(p.child, p.memory, 0, 4096, "none", WH_ACCESS_NONE, &none);
		control = raw_control(p.child->url, &welcome);
		want(1, raw_skip_regions(control));
		fd = greet_shm(&welcome);
		want(0, ask(fd, p.remote.id, 0));
		want(0, answer_of(fd, &exported));
		/* Regions that are unpublished or never existed, and segments out of range. */
		want(0, ask(fd, none, 0));
		want(-ENOENT, answer_of(fd, &exported));
		want(0, ask(fd, p.remote.id + 1000, 0));
		want(-ENOENT, answer_of(fd, &exported));
		want(0, ask(fd, UINT64_MAX, UINT32_MAX));
		want(-ENOENT, answer_of(fd, &exported));
		for (uint32_t shift = 0; shift < 31; shift++) {
			be_heard(control);
			want(0, ask(fd, p.remote.id, UINT32_C(1) << shift));
			want(-ERANGE, answer_of(fd, &exported));
		}
		for (uint32_t shift = 0; shift < 31; shift += 6) {
			be_heard(control);
			want(0, ask(fd, p.remote.id, UINT32_C(1) << shift | WH_MAP_OBJECTS));
			want(-ERANGE, answer_of(fd, &exported));
		}
		/* Objects of an unpublished region, and of a published one: the kernel driver
		 * decides whether they exist. */
		want(0, ask(fd, none, WH_MAP_OBJECTS));
		want(-ENOENT, answer_of(fd, &exported));
		be_heard(control);
		want(0, ask(fd, p.remote.id, WH_MAP_OBJECTS));
		want_true(answer_of(fd, &exported) != -ERANGE, "no object of its only segment");
		be_heard(control);
		for (uint32_t less = 0; less < 40; less++) {
			be_heard(control);
			want(0, ask(fd, p.remote.id, UINT32_MAX - less));
			want(-ERANGE, answer_of(fd, &exported));
		}
		want_well(&p);
		be_heard(control);
		/* Frames of other types than MAP, or of another length. */
		for (unsigned int i = 0; i < 6; i++) {
			static const uint16_t types[] = {
				WH_FRAME_MAP, WH_FRAME_MAP, WH_FRAME_EXPORTED, WH_FRAME_PING, 0,
				0xffff
			};
			int other = greet_shm(&welcome);

			be_heard(control);
			pattern_fill(garbage, sizeof(garbage), 0, i);
			raw_send_frame(other, types[i], 0, garbage, i ? 40 : 8);
			want_true(raw_closes(other, SCALE(3000, 10000)), "it took frame %u", i);
			close(other);
		}
		want_well(&p);
		be_heard(control);
		/* A client that asks and does not read is dropped, and delays nobody. */
		fd = (close(fd), greet_shm(&welcome));
		for (unsigned int i = 0; i < 20000; i++)
			if (ask(fd, p.remote.id, 0))
				break;
		want_well(&p);
		close(fd);
		close(control);
		want_well(&p);
		gpu_pair_close(&p);
	}
}

/* A session received the memory and does not confirm its release. It cannot block the owner for
 * ever, nor is the memory freed while mapped. */
static void owner__not_let_go(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	static const struct child_options hasty = { .config = { "timeout=1000" } };

	(void)state;
	harness_limit(60);
	for (unsigned int k = 0; k < 2; k++) {
		struct wh_exported exported;
		struct wh_hello welcome;
		struct gpu_pair p;
		int control, fd, region;
		int64_t begun, quiet;
		uint64_t id;

		gpu_pair_open_with(&p, WH_MEMORY_DEVICE, "cuda:0", kinds[k], "cuda:0", LENGTH,
				   child_start(&hasty));
		region = child_region(p.child, p.memory, 0, LENGTH, "kept", 0, &id);
		control = raw_control(p.child->url, &welcome);
		want(2, raw_skip_regions(control));
		fd = greet_shm(&welcome);
		want(0, ask(fd, id, 0));
		want(0, answer_of(fd, &exported));
		quiet = quiet_now();
		begun = now();
		want(-EBUSY, child_unregister(p.child, region));
		want_true(now() - begun > 500 * MS && quiet_now() - quiet < SCALE(5, 20) * SECOND,
			  "it took %lld ms", (long long)((now() - begun) / MS));
		want(0, ask(fd, id, 0));
		want(-ENOENT, answer_of(fd, &exported));
		close(fd);
		close(control);
		for (begun = now(); child_unregister(p.child, region) && now() - begun < PATIENCE;)
			sleep_ms(20);
		want(-EINVAL, child_unregister(p.child, region)); /* unregistered already */
		want_well(&p);
		gpu_pair_close(&p);
	}
}

static int answer_to(struct wh_engine *owner, uint64_t id, const char *name, int published)
{
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL), welcome;
	int control = raw_connect(wh_engine_url(owner)), fd, error;
	struct wh_exported exported;

	strcpy(hello.name, name);
	want(0, raw_greet(control, &hello, &welcome));
	want(published, raw_skip_regions(control));
	fd = greet_shm(&welcome);
	want(0, ask(fd, id, 0));
	error = answer_of(fd, &exported);
	close(fd);
	close(control);
	return error;
}

/* A handle cannot distinguish peers: a peer with fewer rights than another gets none. */
static void owner__rights_by_name(void **state)
{
	static const struct wh_grant grants[] = { { "alice", WH_ACCESS_READ | WH_ACCESS_WRITE, 0 },
						  { "bob", WH_ACCESS_READ, 0 },
						  { "dave", WH_ACCESS_WRITE, 0 } };
	struct wh_memory_options kind = { .size = sizeof(kind),
					  .kind = WH_MEMORY_DEVICE,
					  .location = "cuda:0" };
	struct wh_region_options named = {
		.size = sizeof(named), .name = "target", .grants = grants, .grant_count = 3
	};
	struct wh_engine *owner;
	struct wh_region *region;
	void *memory;
	uint64_t id;

	(void)state;
	want(0,
	     wh_engine_open(&(struct wh_engine_options){ .size = sizeof(struct wh_engine_options),
							 .listen = "127.0.0.1:0" },
			    &owner));
	want(0, wh_memory_alloc(owner, LENGTH, &kind, &memory));
	want(0, wh_region_register(owner, memory, LENGTH, &named, &region));
	id = wh_region_id(region);
	want(0, answer_to(owner, id, "alice", 1));
	want(-EOPNOTSUPP, answer_to(owner, id, "bob", 1));
	want(-EOPNOTSUPP, answer_to(owner, id, "dave", 1));
	want(-ENOENT, answer_to(owner, id, "carol", 0));
	for (int64_t begun = now(); wh_region_unregister(region) && now() - begun < PATIENCE;)
		sleep_ms(20);
	want(0, wh_memory_free(owner, memory));
	want(0, wh_engine_close(owner));
}

/* ---- to the initiator -------------------------------------------------- */

enum lie {
	LIE_NONE, /* not a handle */
	LIE_ID,
	LIE_INDEX,
	LIE_SEGMENTS,
	LIE_ADDRESS,
	LIE_SHORT,
	LIE_LONG,
	LIE_NO_DESCRIPTOR,
	LIE_FILE,
	LIE_DEVICE,
	LIE_TYPE,
	LIE_OBJECT, /* an object that was not requested */
	LIE_CHANGES_TYPE,
	LIE_HUGE,
	LIE_FRAME,
	LIE_CUT_OFF,
	LIE_SILENCE,
	LIE_SIZE, /* a valid handle of less memory */
	LIES,
	LIE_FORGED, /* valid but for the driver's identity of the memory */
};

struct impostor {
	pthread_t thread;
	int listener, unix_listener, alive;
	char url[64], name[32];
	enum lie lie;
	struct wh_exported honest; /* an honest owner's segment, for LIE_SIZE */
	uint8_t device[16];
	uint64_t length;
	_Atomic bool stop;
};

/* Send bytes, with a descriptor unless that is -1. */
static void send_with(int socket, const void *bytes, size_t length, int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
	}
	sendmsg(socket, &message, MSG_NOSIGNAL);
}

static void send_exported(int fd, const struct wh_exported *e, int descriptor, size_t cut)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_EXPORTED_MAX];
	size_t length = wh_exported_encode(bytes + WH_FRAME_HEADER, e);

	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_EXPORTED, 0 });
	send_with(fd, bytes, WH_FRAME_HEADER + length - cut, descriptor);
}

static void lie(struct impostor *me, int fd, uint64_t id)
{
	struct wh_exported e = { .id = id,
				 .segments = 1,
				 .type = WH_HANDLE_LEGACY,
				 .address = ADDRESS,
				 .length = me->length,
				 .base = ADDRESS,
				 .size = me->length };
	int file = open("/dev/zero", O_RDWR | O_CLOEXEC), sent = -1;

	memcpy(e.device, me->device, sizeof(e.device));
	memset(e.handle, 0xee, sizeof(e.handle));
	switch (me->lie) {
	case LIE_ID:
		e.id++;
		break;
	case LIE_INDEX:
		e.segments = 9;
		e.index = 5;
		break;
	case LIE_SEGMENTS:
		e.segments = UINT32_MAX;
		e.type = WH_HANDLE_FD;
		sent = file;
		e.length = 1;
		break;
	case LIE_ADDRESS:
		e.address = e.base = ADDRESS - 4096;
		break;
	case LIE_SHORT:
		e.length--;
		break;
	case LIE_LONG:
		e.length += 4096;
		e.size += 8192;
		break;
	case LIE_NO_DESCRIPTOR:
		e.type = WH_HANDLE_FD;
		break;
	case LIE_FILE:
		e.type = WH_HANDLE_FD;
		sent = file;
		break;
	case LIE_DEVICE:
		memset(e.device, 0x55, sizeof(e.device));
		break;
	case LIE_TYPE:
		e.type = 77;
		break;
	case LIE_OBJECT:
		e.type = WH_HANDLE_OBJECT;
		sent = file;
		break;
	case LIE_CHANGES_TYPE:
		e.segments = 2;
		e.length = e.size = me->length / 2;
		break;
	case LIE_HUGE:
		e.size = UINT64_MAX - ADDRESS - 5;
		e.type = WH_HANDLE_FD;
		sent = file;
		break;
	case LIE_FORGED:
		e = me->honest;
		e.id = id;
		e.address = ADDRESS;
		e.base = ADDRESS - (me->honest.address - me->honest.base);
		break;
	case LIE_SIZE:
		e = me->honest;
		e.id = id;
		e.address = e.base = ADDRESS;
		e.length = e.size = me->length;
		break;
	default:
		break;
	}
	if (me->lie == LIE_FRAME)
		raw_send_frame(fd, WH_FRAME_EXPORTED, 0, &e, sizeof(e));
	else if (me->lie != LIE_SILENCE)
		send_exported(fd, &e, sent, me->lie == LIE_CUT_OFF ? 3 : 0);
	if (me->lie == LIE_CHANGES_TYPE) {
		e.index = 1;
		e.type = WH_HANDLE_FD;
		e.address = e.base = ADDRESS + me->length / 2;
		send_exported(fd, &e, file, 0);
	}
	close(file);
}

static void welcome_to(struct impostor *me, int fd)
{
	struct wh_region_record record = { .id = REGION,
					   .address = ADDRESS,
					   .length = me->length,
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE,
					   .kind = WH_MEMORY_DEVICE,
					   .name = "target" };
	uint8_t bytes[WH_HELLO_MAX], answer[WH_HELLO_MAX];
	struct wh_hello hello, welcome;
	struct wh_proofs proofs;
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0 || wh_hello_decode(bytes, (size_t)length, &hello))
		return;
	welcome = raw_hello(hello.role);
	welcome.session = 5;
	memcpy(welcome.host, hello.host, sizeof(welcome.host));
	snprintf(welcome.socket, sizeof(welcome.socket), "%s", me->name);
	length = raw_welcome(bytes, (size_t)length, &welcome, NULL, answer, &proofs);
	if (length < 0 || raw_send_frame(fd, WH_FRAME_WELCOME, 0, answer, (size_t)length) ||
	    raw_receive_frame(fd, &frame, bytes, sizeof(bytes)) != WH_PROOF_SIZE ||
	    memcmp(bytes, proofs.initiator, WH_PROOF_SIZE) != 0)
		return;
	if (hello.role == WH_ROLE_LOCAL) {
		wh_frame_encode(bytes, &(struct wh_frame){ 0, WH_FRAME_ALIVE, 0 });
		send_with(fd, bytes, WH_FRAME_HEADER, me->alive);
	}
	if (hello.role == WH_ROLE_CONTROL) {
		uint8_t region[WH_REGION_RECORD_MAX];

		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, region,
			       wh_region_encode(region, &record));
	}
}

/* Answer any frame of a connection. False: hang up. */
static bool serve(struct impostor *me, int fd)
{
	uint8_t bytes[WH_NOTIFICATION_MAX];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0)
		return false;
	if (frame.type == WH_FRAME_PING)
		raw_send_frame(fd, WH_FRAME_PONG, 0, bytes, (size_t)length);
	if (frame.type == WH_FRAME_MAP)
		lie(me, fd, wh_get64(bytes));
	return true;
}

static void *impostor(void *arg)
{
	struct impostor *me = arg;
	struct pollfd fds[16] = { { .fd = me->listener, .events = POLLIN },
				  { .fd = me->unix_listener, .events = POLLIN } };
	nfds_t count = 2;

	while (!atomic_load(&me->stop)) {
		poll(fds, count, 10);
		for (nfds_t i = 2; i < count; i++) {
			if (!fds[i].revents || serve(me, fds[i].fd))
				continue;
			close(fds[i].fd);
			fds[i--] = fds[--count];
		}
		for (nfds_t i = 0; i < 2 && count < 16; i++) {
			int fd = fds[i].revents ? accept4(fds[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
			struct timeval patience = { .tv_sec = 2 };

			if (fd < 0)
				continue;
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
			welcome_to(me, fd);
			fds[count++] = (struct pollfd){ .fd = fd, .events = POLLIN };
		}
	}
	while (count > 2)
		close(fds[--count].fd);
	return NULL;
}

static void impostor_start(struct impostor *me)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un local = { .sun_family = AF_UNIX };
	socklen_t length = sizeof(address);
	uint32_t tid = 5;

	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(me->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(me->listener, 16));
	want(0, getsockname(me->listener, (struct sockaddr *)&address, &length));
	snprintf(me->url, sizeof(me->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	snprintf(me->name, sizeof(me->name), "impostor-%d", (int)getpid());
	me->unix_listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	memcpy(local.sun_path + 1, me->name, strlen(me->name));
	want(0, bind(me->unix_listener, (struct sockaddr *)&local,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(me->name))));
	want(0, listen(me->unix_listener, 16));
	me->alive = memfd_create("alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	want(0, ftruncate(me->alive, 4096));
	want(sizeof(tid), pwrite(me->alive, &tid, sizeof(tid), 0));
	want(0, fcntl(me->alive, F_ADD_SEALS, F_SEAL_SHRINK));
	want(0, pthread_create(&me->thread, NULL, impostor, me));
}

static void impostor_stop(struct impostor *me)
{
	atomic_store(&me->stop, true);
	pthread_join(me->thread, NULL);
	close(me->listener);
	close(me->unix_listener);
	close(me->alive);
}

/* A transfer from our GPU to the impostor's memory is refused, soon. */
static void want_refused(struct impostor *me)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_memory_options on = { .size = sizeof(on),
					.kind = WH_MEMORY_DEVICE,
					.location = "cuda:0" };
	struct wh_batch_options by = { .size = sizeof(by), .require = "cuda" };
	struct wh_transfer one = { .length = 4096, .op = WH_WRITE, .remote = REGION };
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	int64_t before = quiet_now();
	void *memory;
	int error;

	impostor_start(me);
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_memory_alloc(engine, LENGTH, &on, &memory));
	want(0, wh_region_register(engine, memory, LENGTH, NULL, &one.local));
	want(0, wh_peer_open(engine, me->url, NULL, &peer));
	want(0, wh_batch_new(peer, &by, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	one.remote_offset = me->length - 4096;
	want(0, wh_batch_add(batch, &one, 1));
	error = wh_batch_submit(batch);
	want_true(error == -EOPNOTSUPP, "lie %d: %s: %s", me->lie,
		  error ? strerrorname_np(-error) : "taken", wh_error_text());
	want_true(me->lie != LIE_SIZE || strstr(wh_error_text(), "bytes, and not"), "%s",
		  wh_error_text());
	want_true(quiet_now() - before < SCALE(4, 15) * SECOND, "lie %d took %lld ms", me->lie,
		  (long long)((quiet_now() - before) / MS));
	/* Transfers between our own regions still work. */
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(one.local));
	want(0, wh_memory_free(engine, memory));
	want(0, wh_engine_close(engine));
	impostor_stop(me);
}

static void initiator__told_lies(void **state)
{
	struct wh_exported honest;
	struct wh_hello welcome;
	struct gpu_pair p;
	size_t before;
	int control, fd;

	(void)state;
	harness_limit(100);
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	control = raw_control(p.child->url, &welcome);
	want(1, raw_skip_regions(control));
	fd = greet_shm(&welcome);
	want(0, ask(fd, p.remote.id, 0));
	want(0, answer_of(fd, &honest));
	want(WH_HANDLE_LEGACY, honest.type);
	before = gpu_free_memory(0);
	for (enum lie l = LIE_NONE; l < LIES; l++) {
		struct impostor me = { .lie = l, .honest = honest, .length = 4 * LENGTH };

		memcpy(me.device, honest.device, sizeof(me.device));
		want_refused(&me);
		want(before, gpu_free_memory(0));
	}
	close(fd);
	close(control);
	want_well(&p);
	gpu_pair_close(&p);
}

/* ---- handles that name other processes' objects ------------------------ */

/* Offsets of the client and the object within a handle. */
#define HANDLE_CLIENT 48
#define HANDLE_OBJECT 52

/* The handle of this process's own memory. */
static void handle_of(const void *memory, unsigned char handle[64])
{
	void *library = dlopen(getenv("TEST_CUDA"), RTLD_NOW | RTLD_NOLOAD);
	int (*get)(void *out, uint64_t address);

	assert_non_null(library);
	*(void **)&get = dlsym(library, "cuIpcGetMemHandle");
	want(0, get(handle, (uintptr_t)memory));
	dlclose(library);
}

/* Write a few bytes to a peer whose handle opens its memory, but names the object of `client` and
 * `object`. CUDA moves the bytes, and nobody duplicates that object. */
static void want_unread(struct impostor *me, uint32_t client, uint32_t object, struct child *honest,
			int memory)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_batch_options by = { .size = sizeof(by), .require = "cuda" };
	struct wh_transfer one = {
		.length = 8, .op = WH_WRITE, .remote = REGION, .remote_offset = 16
	};
	unsigned char seen[8], sent[8] = { 1, 2, 3, 4, 5, 6, 7, (unsigned char)object };
	unsigned before = stand_in_state().asked;
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	char text[1024] = "";

	atomic_store(&me->stop, false);
	memcpy(me->honest.handle + HANDLE_CLIENT, &client, sizeof(client));
	memcpy(me->honest.handle + HANDLE_OBJECT, &object, sizeof(object));
	impostor_start(me);
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_region_register(engine, sent, sizeof(sent), NULL, &one.local));
	want(0, wh_peer_open(engine, me->url, NULL, &peer));
	want(0, wh_batch_new(peer, &by, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	want(0, gpu_run(batch));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "no CPU window: "), "%s", text);
	want_true(strstr(text, "another process's memory"), "%s", text);
	want(before, stand_in_state().asked);
	want(0, stand_in_state().mapped);
	child_fetch(honest, memory, 16, sizeof(seen), seen);
	want_true(!memcmp(seen, sent, sizeof(seen)), "the bytes are not there");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(one.local));
	want(0, wh_engine_close(engine));
	impostor_stop(me);
}

static void initiator__forged_handles(void **state)
{
	unsigned char own[64], third[64];
	struct wh_exported honest, other;
	struct impostor me = { .lie = LIE_FORGED };
	struct wh_hello welcome;
	struct gpu_pair p, q;
	uint32_t client, object;
	int control, fd;

	(void)state;
	harness_limit(100);
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	gpu_pair_open(&q, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	control = raw_control(q.child->url, &welcome);
	want(1, raw_skip_regions(control));
	fd = greet_shm(&welcome);
	want(0, ask(fd, q.remote.id, 0));
	want(0, answer_of(fd, &other));
	memcpy(third, other.handle, sizeof(third));
	close(fd);
	close(control);
	control = raw_control(p.child->url, &welcome);
	want(1, raw_skip_regions(control));
	fd = greet_shm(&welcome);
	want(0, ask(fd, p.remote.id, 0));
	want(0, answer_of(fd, &honest));
	want(WH_HANDLE_LEGACY, honest.type);
	me.honest = honest;
	me.length = honest.length;
	/* Our own memory. */
	handle_of(p.local, own);
	memcpy(&client, own + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, own + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	/* A third process's memory. */
	memcpy(&client, third + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, third + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	/* Arbitrary numbers. */
	for (uint32_t n = 1; n <= 3; n++)
		want_unread(&me, 0xc1d00000u + n * 7, 0x9e3779b9u * n, p.child, p.memory);
	/* The owner's own numbers: not even these are read. */
	memcpy(&client, honest.handle + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, honest.handle + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	close(fd);
	close(control);
	gpu_pair_close(&q);
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(owner__asked_for_nonsense, needs_fake),
	TEST_NEEDS(owner__not_let_go, needs_fake),
	TEST_NEEDS(owner__rights_by_name, needs_fake),
	TEST_NEEDS(initiator__told_lies, needs_fake),
	TEST_NEEDS(initiator__forged_handles, needs_stand_in),
};

HARNESS_MAIN("hostile-gpu", tests)
