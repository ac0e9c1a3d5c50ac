/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: queue pairs on a rail, for the initiator and for the owner, and their way to INIT, RTR and
 * RTS. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/rdma/rdma.h"

static int qp_fail(const struct rdma_rail *rail, const char *call, int error, char why[WH_REFUSAL])
{
	snprintf(why, WH_REFUSAL, "%s: %s: %s%s", rail->name, call, strerror(error),
		 error == ENOMEM ? " (ulimit -l, or all of its queue pairs are taken)" : "");
	return -error;
}

static int qp_make(const struct rdma_rail *rail, struct ibv_qp_init_attr *wanted,
		   unsigned int access, struct ibv_qp **out, char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = rail->nic->rdma->verbs;
	struct ibv_qp_attr first = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = rail->pkey_index,
		.port_num = rail->port,
		.qp_access_flags = access,
	};
	struct ibv_qp *qp = verbs->create_qp(rail->nic->pd, wanted);
	int error;

	if (!qp && wanted->cap.max_inline_data) {
		wanted->cap.max_inline_data = 0;
		qp = verbs->create_qp(rail->nic->pd, wanted);
	}
	if (!qp)
		return qp_fail(rail, "ibv_create_qp", errno ? errno : EIO, why);
	error = verbs->modify_qp(
		qp, &first, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error) {
		verbs->destroy_qp(qp);
		return qp_fail(rail, "ibv_modify_qp to INIT", error, why);
	}
	*out = qp;
	return 0;
}

int rdma_qp_new(const struct rdma_rail *rail, struct ibv_cq *cq, uint32_t depth,
		struct ibv_qp **out, uint32_t *inlined, char why[WH_REFUSAL])
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth,
			 .max_recv_wr = 1,
			 .max_send_sge = rail->nic->gather,
			 .max_recv_sge = 1,
			 .max_inline_data = RDMA_INLINE },
	};
	int error = qp_make(rail, &wanted, 0, out, why); /* only the owner's end answers */

	*inlined = wanted.cap.max_inline_data;
	return error;
}

int rdma_qp_new_responder(const struct rdma_rail *rail, struct ibv_cq *receives,
			  struct ibv_qp **out, char why[WH_REFUSAL])
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = rail->nic->idle,
		.recv_cq = receives,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = WH_RDMA_RING_SLOTS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	return qp_make(rail, &wanted, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, out, why);
}

/* Set the address of the other end. */
static void qp_address(const struct rdma_rail *rail, const struct wh_rdma_end *local,
		       const struct wh_rdma_end *remote, struct ibv_ah_attr *out)
{
	const int64_t *number = wh_engine_config(rail->nic->rdma->engine)->number;

	out->port_num = rail->port;
	out->dlid = remote->lid;
	out->sl = (uint8_t)number[WH_SETTING_RDMA_SL];
	/* Within an InfiniBand subnet the LID is enough. */
	if (!rail->routed && remote->lid && !memcmp(local->gid, remote->gid, 8))
		return;
	out->is_global = 1;
	memcpy(out->grh.dgid.raw, remote->gid, sizeof(remote->gid));
	out->grh.sgid_index = rail->gid_index;
	out->grh.hop_limit = 64;
	out->grh.traffic_class = (uint8_t)number[WH_SETTING_RDMA_CLASS];
}

static uint8_t qp_smaller(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

int rdma_qp_connect(const struct rdma_rail *rail, struct ibv_qp *qp,
		    const struct wh_rdma_end *local, const struct wh_rdma_end *remote,
		    char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = rail->nic->rdma->verbs;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = qp_smaller(local->mtu, remote->mtu),
		.dest_qp_num = remote->qp,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic =
			qp_smaller(local->responder_resources, remote->initiator_depth),
		.min_rnr_timer = 12,
	};
	int error;

	if (!rdma_ends_are_compatible(local, remote, why))
		return -EOPNOTSUPP;
	qp_address(rail, local, remote, &attributes.ah_attr);
	error = verbs->modify_qp(qp, &attributes,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER);
	if (error)
		return qp_fail(rail, "ibv_modify_qp to RTR", error, why);
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = local->psn,
		.timeout = rail->nic->rdma->ack_timeout,
		.retry_cnt = RDMA_RETRIES,
		.rnr_retry = RDMA_RETRIES,
		.max_rd_atomic = qp_smaller(local->initiator_depth, remote->responder_resources),
	};
	error = verbs->modify_qp(qp, &attributes,
				 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC);
	return error ? qp_fail(rail, "ibv_modify_qp to RTS", error, why) : 0;
}
