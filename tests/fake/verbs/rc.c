/* SPDX-License-Identifier: Apache-2.0 */
/* Reliable queue pairs: work requests, their thread, and completions. See fake-verbs.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "inside.h"

#define PAUSE_LEAST 100000u /* ns: shorter sleeps would be too inaccurate */

#define LOCAL_PROTECTION 4 /* IBV_WC_LOC_PROT_ERR, which Wherry does not name */

static _Atomic uint64_t requests, doorbells, completions, events, underruns;

EXPORT void fake_verbs_hold_nic(unsigned nic, bool hold)
{
	atomic_store(&nic_of(nic)->held, hold);
}

EXPORT void fake_verbs_hold(bool hold)
{
	for (unsigned nic = 0; nic < NICS; nic++)
		fake_verbs_hold_nic(nic, hold);
}

EXPORT void fake_verbs_fail_nic(unsigned nic, int status, unsigned after)
{
	atomic_store(&nic_of(nic)->lose, false);
	atomic_store(&nic_of(nic)->fail_after, after);
	atomic_store(&nic_of(nic)->fail_status, status);
}

EXPORT void fake_verbs_fail(int status, unsigned after)
{
	fake_verbs_fail_nic(0, status, after);
}

EXPORT void fake_verbs_lose(int status, unsigned after)
{
	fake_verbs_fail_nic(0, status, after);
	atomic_store(&nic_of(0)->lose, true);
}

EXPORT uint64_t fake_verbs_underruns(void)
{
	return atomic_load(&underruns);
}

EXPORT void fake_verbs_speed(unsigned nic, uint64_t speed)
{
	atomic_store(&nic_of(nic)->speed, speed);
}

EXPORT uint64_t fake_verbs_moved(unsigned nic)
{
	return atomic_load(&nic_of(nic)->moved);
}

EXPORT void fake_verbs_counts(uint64_t counts[4])
{
	counts[0] = atomic_load(&requests);
	counts[1] = atomic_load(&doorbells);
	counts[2] = atomic_load(&completions);
	counts[3] = atomic_load(&events);
}

/* ---- completions ----------------------------------------------------------------------------- */

static void cq_push(struct cq *cq, const struct ibv_wc *wc)
{
	struct channel *channel = (struct channel *)cq->ibv.channel;

	pthread_mutex_lock(&cq->lock);
	if (cq->head - cq->tail == cq->room)
		abort(); /* an overrun: a real queue would lose completions */
	cq->wcs[cq->head++ % cq->room] = *wc;
	if (cq->armed && channel) {
		void *self = cq;

		cq->armed = false;
		pthread_mutex_lock(&channel->lock);
		if (channel->write >= 0 &&
		    write(channel->write, &self, sizeof(self)) != sizeof(self))
			abort();
		pthread_mutex_unlock(&channel->lock);
	}
	pthread_mutex_unlock(&cq->lock);
}

static void qp_complete(struct qp *qp, const struct ibv_send_wr *wr, int status)
{
	const struct ibv_wc wc = { .wr_id = wr->wr_id, .status = status, .qp_num = qp->ibv.qp_num };

	atomic_fetch_add(&completions, 1); /* before a poller can see it */
	cq_push((struct cq *)qp->ibv.send_cq, &wc);
}

int rc_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *out)
{
	struct cq *cq = (struct cq *)ibv;
	int got = 0;

	pthread_mutex_lock(&cq->lock);
	while (got < count && cq->tail != cq->head)
		out[got++] = cq->wcs[cq->tail++ % cq->room];
	pthread_mutex_unlock(&cq->lock);
	return got;
}

int rc_arm(struct ibv_cq *ibv, int solicited)
{
	struct cq *cq = (struct cq *)ibv;

	(void)solicited;
	atomic_fetch_add(&events, 1);
	pthread_mutex_lock(&cq->lock);
	cq->armed = true;
	pthread_mutex_unlock(&cq->lock);
	return 0;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	struct context *of = (struct context *)context;
	int pipes[2];

	if (!channel || pipe2(pipes, O_CLOEXEC))
		abort();
	channel->ibv.context = context;
	channel->ibv.fd = pipes[0];
	channel->write = pipes[1];
	pthread_mutex_init(&channel->lock, NULL);
	pthread_mutex_lock(&of->lock);
	channel->next = of->channels;
	of->channels = channel;
	pthread_mutex_unlock(&of->lock);
	count_open(1);
	return &channel->ibv;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct channel *channel = (struct channel *)ibv, **at;
	struct context *context = (struct context *)ibv->context;

	pthread_mutex_lock(&context->lock);
	for (at = &context->channels; *at != channel; at = &(*at)->next)
		;
	*at = channel->next;
	pthread_mutex_unlock(&context->lock);
	close(channel->ibv.fd);
	if (channel->write >= 0)
		close(channel->write);
	pthread_mutex_destroy(&channel->lock);
	free(channel);
	count_open(-1);
	return 0;
}

void rc_removed(struct context *context)
{
	pthread_mutex_lock(&context->lock);
	for (struct channel *channel = context->channels; channel; channel = channel->next) {
		pthread_mutex_lock(&channel->lock);
		if (channel->write >= 0)
			close(channel->write);
		channel->write = -1;
		pthread_mutex_unlock(&channel->lock);
	}
	pthread_mutex_unlock(&context->lock);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
				    struct ibv_comp_channel *channel, int vector)
{
	struct cq *cq = calloc(1, sizeof(*cq));

	if (!cq || entries < 1 || vector)
		abort();
	cq->ibv.context = context;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.cqe = entries;
	cq->room = (uint32_t)entries;
	cq->wcs = calloc(cq->room, sizeof(cq->wcs[0]));
	pthread_mutex_init(&cq->lock, NULL);
	count_open(1);
	return &cq->ibv;
}

/* Discard the events of a completion queue that is destroyed. */
static void channel_forget_events(struct channel *channel, const void *cq)
{
	void *waiting[4096];
	int length = 0;

	pthread_mutex_lock(&channel->lock);
	if (ioctl(channel->ibv.fd, FIONREAD, &length) || (size_t)length > sizeof(waiting) ||
	    (length && read(channel->ibv.fd, waiting, (size_t)length) != length))
		abort();
	for (size_t i = 0; i < (size_t)length / sizeof(waiting[0]); i++)
		if (waiting[i] != cq && channel->write >= 0 &&
		    write(channel->write, &waiting[i], sizeof(cq)) != sizeof(cq))
			abort();
	pthread_mutex_unlock(&channel->lock);
}

EXPORT int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct cq *cq = (struct cq *)ibv;
	struct channel *channel = (struct channel *)ibv->channel;

	if (cq->events != cq->acked)
		abort();
	if (channel)
		channel_forget_events(channel, cq);
	pthread_mutex_destroy(&cq->lock);
	free(cq->wcs);
	free(cq);
	count_open(-1);
	return 0;
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	void *got;

	if (read(channel->fd, &got, sizeof(got)) != sizeof(got))
		return -1;
	*cq = got;
	*cq_context = (*cq)->cq_context;
	((struct cq *)got)->events++;
	return 0;
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	((struct cq *)cq)->acked += count;
}

/* ---- moving bytes ---------------------------------------------------------------------------- */

/* The remote queue pair, if it is connected to this one; NULL: packets would not reach it. */
static struct world_qp *qp_remote(const struct qp *qp)
{
	uint32_t index = qp->attr.dest_qp_num - FIRST_QP;
	const struct ibv_ah_attr *to = &qp->attr.ah_attr;
	struct world_qp *other;

	if (index >= WORLD_QPS)
		return NULL;
	other = &world_get()->qps[index];
	if (!atomic_load(&other->pid) || atomic_load(&other->state) < IBV_QPS_RTR ||
	    atomic_load(&other->state) > IBV_QPS_RTS ||
	    atomic_load(&other->dest) != qp->ibv.qp_num ||
	    other->mtu != (uint32_t)qp->attr.path_mtu)
		return NULL;
	if (to->is_global ? memcmp(to->grh.dgid.raw, other->gid, 16) != 0 : to->dlid != other->lid)
		return NULL;
	return other;
}

static uint64_t request_length(const struct request *request)
{
	uint64_t length = 0;

	for (int i = 0; i < request->wr.num_sge; i++)
		length += request->sges[i].length;
	return length;
}

/* Open the file with a memory region's bytes. -1 with errno. */
static int mr_file(struct context *context, const struct world_mr *mr, pid_t pid)
{
	uint32_t key = atomic_load(&mr->key);
	char path[64];

	if (pid == getpid())
		return mr->fd;
	if (context->opened >= 0 && context->opened_key == key)
		return context->opened;
	if (context->opened >= 0)
		close(context->opened);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, mr->fd);
	context->opened = open(path, O_RDWR | O_CLOEXEC);
	context->opened_key = key;
	return context->opened;
}

/* Copy between this process's memory `here` and another's. The bytes copied, or -1 and errno: ESRCH
 * (it has ended), EFAULT or EIO (no memory there). */
static ssize_t process_copy(pid_t pid, void *here, const void *there, size_t length, bool write)
{
	struct iovec ours = { here, length }, theirs = { (void *)(uintptr_t)there, length };
	ssize_t got = write ? process_vm_writev(pid, &ours, 1, &theirs, 1, 0) :
			      process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
	char path[32];
	int fd;

	if (got >= 0 || errno != ENOSYS)
		return got;
	/* qemu-user lacks the calls; its programs have their processes' own addresses. */
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		errno = errno == ENOENT ? ESRCH : errno;
		return -1;
	}
	got = write ? pwrite(fd, here, length, (off_t)(uintptr_t)there) :
		      pread(fd, here, length, (off_t)(uintptr_t)there);
	close(fd);
	return got;
}

/* Copy between a local buffer and a memory region of any process. 0 or an errno. */
static int mr_access(struct context *context, const struct world_mr *mr, pid_t pid,
		     uint64_t address, void *buffer, size_t length, bool write)
{
	off_t at = (off_t)(mr->offset + (address - mr->address));
	ssize_t got;
	int fd;

	if (mr->fd < 0) {
		got = process_copy(pid, buffer, (void *)(uintptr_t)address, length, write);
	} else {
		fd = mr_file(context, mr, pid);
		if (fd < 0 || kill(pid, 0))
			return kill(pid, 0) ? ESRCH : EFAULT;
		got = write ? pwrite(fd, buffer, length, at) : pread(fd, buffer, length, at);
	}
	return got == (ssize_t)length ? 0 : got < 0 && errno == ESRCH ? ESRCH : EFAULT;
}

/* Copy between two regions: in one copy if the local one is host memory, else in parts. */
static int mr_copy(struct context *context, const struct world_mr *ours, uint64_t at,
		   const struct world_mr *theirs, pid_t pid, uint64_t there, size_t length,
		   bool write)
{
	const struct world_mr *from = write ? ours : theirs, *to = write ? theirs : ours;
	pid_t source = write ? getpid() : pid, target = write ? pid : getpid();
	static _Thread_local unsigned char bounce[64 << 10];
	int error = 0;

	if (ours->fd < 0)
		return mr_access(context, theirs, pid, there, (void *)(uintptr_t)at, length, write);
	for (size_t done = 0, part; done < length && !error; done += part) {
		part = length - done < sizeof(bounce) ? length - done : sizeof(bounce);
		error = mr_access(context, from, source, (write ? at : there) + done, bounce, part,
				  false);
		if (!error)
			error = mr_access(context, to, target, (write ? there : at) + done, bounce,
					  part, true);
	}
	return error;
}

/* Consume a receive of the remote queue pair. Under the world's lock, which orders the senders. */
static void qp_take_receive(struct world_qp *other, uint32_t imm, uint32_t length)
{
	uint32_t taken = atomic_load(&other->taken);

	other->came[taken % RECEIVES].imm = imm;
	other->came[taken % RECEIVES].length = length;
	atomic_store(&other->taken, taken + 1);
	world_wake(world_get());
}

static int qp_move(struct qp *qp, const struct request *request)
{
	static const struct world_mr inlined_mr = { .fd = -1 };
	const struct ibv_send_wr *wr = &request->wr;
	bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool write = imm || wr->opcode == IBV_WR_RDMA_WRITE,
	     inlined = wr->send_flags & IBV_SEND_INLINE;
	struct world_qp *other = qp_remote(qp);
	int right = write ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
	uint64_t length = request_length(request), there = wr->wr.rdma.remote_addr;
	const struct world_mr *ours[SGES] = { &inlined_mr }, *theirs;
	unsigned count = inlined ? 1 : (unsigned)wr->num_sge;
	int error = 0;
	pid_t pid;

	for (unsigned n = 0; n < count && !inlined; n++) {
		const struct ibv_sge *sge = &request->sges[n];

		ours[n] = world_mr(getpid(), sge->lkey, sge->addr, sge->length,
				   write ? 0 : IBV_ACCESS_LOCAL_WRITE);
		if (!ours[n])
			return LOCAL_PROTECTION;
	}
	if (!other)
		return IBV_WC_RETRY_EXC_ERR;
	pid = atomic_load(&other->pid);
	if (imm && atomic_load(&other->posted) == atomic_load(&other->taken)) {
		atomic_fetch_add(&underruns, 1);
		return IBV_WC_RNR_RETRY_EXC_ERR;
	}
	if (!wr->num_sge) {
		if (kill(pid, 0))
			return IBV_WC_RETRY_EXC_ERR;
		if (imm)
			qp_take_receive(other, wr->imm_data, 0);
		return 0;
	}
	theirs = world_mr(pid, wr->wr.rdma.rkey, there, length, right);
	if (!(other->access & right) || !theirs) {
		atomic_store(&other->state, IBV_QPS_ERR); /* both queue pairs fail */
		world_wake(world_get());
		return IBV_WC_REM_ACCESS_ERR;
	}
	for (unsigned n = 0; n < count && !error; n++) {
		uint64_t at =
			inlined ? (uint64_t)(uintptr_t)request->inlined : request->sges[n].addr;
		uint64_t part = inlined ? length : request->sges[n].length;

		error = mr_copy((struct context *)qp->ibv.context, ours[n], at, theirs, pid, there,
				part, write);
		there += part;
	}
	if (!error && imm)
		qp_take_receive(other, wr->imm_data, (uint32_t)length);
	return error == ESRCH ? IBV_WC_RETRY_EXC_ERR : error ? IBV_WC_REM_ACCESS_ERR : 0;
}

EXPORT unsigned fake_verbs_receives(const struct ibv_qp *ibv)
{
	const struct world_qp *other = qp_remote((const struct qp *)ibv);

	return other ? atomic_load(&other->posted) - atomic_load(&other->taken) : 0;
}

/* Execute one work request and return the ns that it takes at the NIC's speed. Under
 * context.lock. */
static uint64_t qp_run_request(struct qp *qp)
{
	struct request *request = &qp->requests[qp->tail++ % QP_ROOM];
	struct nic *nic = ((struct context *)qp->ibv.context)->nic;
	int status = IBV_WC_WR_FLUSH_ERR, wanted = atomic_load(&nic->fail_status);
	struct world *world = world_get();
	uint64_t length = request_length(request), speed = atomic_load(&nic->speed);

	if (atomic_load(&qp->out->state) == IBV_QPS_RTS) {
		bool lost = wanted && request->wr.num_sge && !atomic_load(&nic->fail_after) &&
			    atomic_load(&nic->lose);

		/* The lock makes ibv_dereg_mr() wait for requests that use its key. */
		world_lock(world);
		status = lost ? 0 : qp_move(qp, request);
		world_unlock(world);
		if (wanted && request->wr.num_sge && !atomic_load(&nic->fail_after)) {
			status = wanted;
			atomic_store(&nic->fail_status, 0);
		} else if (wanted && request->wr.num_sge) {
			atomic_fetch_sub(&nic->fail_after, 1);
		}
		if (status)
			atomic_store(&qp->out->state, IBV_QPS_ERR);
		else
			atomic_fetch_add(&nic->moved, length);
	}
	if (status || (request->wr.send_flags & IBV_SEND_SIGNALED))
		qp_complete(qp, &request->wr, status);
	return speed && !status ? length * 1000 / speed : 0;
}

static struct qp *context_next_qp(struct context *context)
{
	for (struct qp *qp = context->qps; qp; qp = qp->next)
		if (qp->tail != qp->head && atomic_load(&context->nic->up))
			return qp;
	return NULL;
}

void *context_work(void *argument)
{
	struct context *context = argument;
	struct timespec pause = { 0, 1000000 };
	uint64_t owed = 0; /* ns to sleep for the speed limit */

	pthread_setname_np(pthread_self(), "fake/nic");
	pthread_mutex_lock(&context->lock);
	while (!context->stop) {
		struct qp *qp = context_next_qp(context);

		if (atomic_load(&context->nic->held)) { /* polls: a few ms do not matter to tests */
			pthread_mutex_unlock(&context->lock);
			nanosleep(&pause, NULL);
			pthread_mutex_lock(&context->lock);
		} else if (qp) {
			uint64_t ns = qp_run_request(qp);

			/* Let other threads post work requests and destroy queue pairs. */
			pthread_mutex_unlock(&context->lock);
			owed += ns;
			if (owed >= PAUSE_LEAST) {
				struct timespec busy = { (time_t)(owed / 1000000000),
							 (long)(owed % 1000000000) };

				nanosleep(&busy, NULL);
				owed = 0;
			}
			pthread_mutex_lock(&context->lock);
		} else {
			pthread_cond_wait(&context->work, &context->lock);
		}
	}
	pthread_mutex_unlock(&context->lock);
	return NULL;
}

/* ---- receives -------------------------------------------------------------------------------- */

void world_wake(struct world *world)
{
	atomic_fetch_add(&world->arrivals, 1);
	syscall(SYS_futex, &world->arrivals, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Complete the consumed receives, and flush all others if the queue pair has failed. */
static void qp_complete_receives(struct qp *qp)
{
	struct cq *cq = (struct cq *)qp->ibv.recv_cq;
	uint32_t taken = atomic_load(&qp->out->taken);
	struct ibv_wc wc = { .qp_num = qp->ibv.qp_num };

	for (; qp->received != taken; qp->received++) {
		wc.wr_id = qp->receives[qp->received % RECEIVES];
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		wc.wc_flags = IBV_WC_WITH_IMM;
		wc.imm_data = qp->out->came[qp->received % RECEIVES].imm;
		wc.byte_len = qp->out->came[qp->received % RECEIVES].length;
		cq_push(cq, &wc);
	}
	if (atomic_load(&qp->out->state) != IBV_QPS_ERR || atomic_load(&qp->out->taken) != taken)
		return;
	for (; qp->received != atomic_load(&qp->out->posted); qp->received++) {
		wc = (struct ibv_wc){ .wr_id = qp->receives[qp->received % RECEIVES],
				      .status = IBV_WC_WR_FLUSH_ERR,
				      .qp_num = qp->ibv.qp_num };
		cq_push(cq, &wc);
		atomic_fetch_add(&qp->out->taken, 1);
	}
}

/* Thread: complete receives, which other processes may have consumed. */
void *context_receive(void *argument)
{
	const struct timespec often = { 0, 100000000 };
	struct context *context = argument;
	struct world *world = world_get();

	pthread_setname_np(pthread_self(), "fake/nic");
	pthread_mutex_lock(&context->lock);
	while (!context->stop) {
		uint32_t seen = atomic_load(&world->arrivals);

		for (struct qp *qp = context->qps; qp; qp = qp->next)
			qp_complete_receives(qp);
		pthread_mutex_unlock(&context->lock);
		syscall(SYS_futex, &world->arrivals, FUTEX_WAIT, seen, &often, NULL, 0);
		pthread_mutex_lock(&context->lock);
	}
	pthread_mutex_unlock(&context->lock);
	return NULL;
}

int rc_receive(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct context *context = (struct context *)ibv->context;
	struct qp *qp = (struct qp *)ibv;
	int error = 0;

	pthread_mutex_lock(&context->lock);
	for (; wr && !error; wr = wr->next) {
		uint32_t posted = atomic_load(&qp->out->posted);

		*bad = wr;
		if (wr->num_sge || atomic_load(&qp->out->state) < IBV_QPS_INIT)
			error = EINVAL;
		else if (posted - atomic_load(&qp->out->taken) == qp->cap.max_recv_wr)
			error = ENOMEM;
		if (error)
			break;
		qp->receives[posted % RECEIVES] = wr->wr_id;
		atomic_store(&qp->out->posted, posted + 1);
	}
	pthread_mutex_unlock(&context->lock);
	return error;
}

/* ---- posting --------------------------------------------------------------------------------- */

static uint64_t sges_length(const struct ibv_send_wr *wr)
{
	uint64_t length = 0;

	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	return length;
}

static void take_inline(struct request *request)
{
	uint8_t *at = request->inlined;

	for (int i = 0; i < request->wr.num_sge; i++) {
		memcpy(at, (void *)(uintptr_t)request->sges[i].addr, request->sges[i].length);
		at += request->sges[i].length;
	}
}

int rc_post(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct context *context = (struct context *)ibv->context;
	struct qp *qp = (struct qp *)ibv;
	int error = 0;

	atomic_fetch_add(&doorbells, 1);
	pthread_mutex_lock(&context->lock);
	for (; wr && !error; wr = wr->next) {
		struct request *request = &qp->requests[qp->head % QP_ROOM];

		*bad = wr;
		if (qp->head - qp->tail == qp->cap.max_send_wr)
			error = ENOMEM;
		else if (atomic_load(&qp->out->state) < IBV_QPS_RTS ||
			 wr->num_sge > (int)qp->cap.max_send_sge ||
			 ((wr->send_flags & IBV_SEND_INLINE) &&
			  (wr->opcode == IBV_WR_RDMA_READ ||
			   sges_length(wr) > qp->cap.max_inline_data)))
			error = EINVAL;
		if (error)
			break;
		request->wr = *wr;
		for (int i = 0; i < wr->num_sge; i++)
			request->sges[i] = wr->sg_list[i];
		if (wr->send_flags & IBV_SEND_INLINE)
			take_inline(request);
		qp->head++;
		atomic_fetch_add(&requests, 1);
	}
	pthread_cond_signal(&context->work);
	pthread_mutex_unlock(&context->lock);
	return error;
}
