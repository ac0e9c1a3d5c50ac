/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own declarations of the part of the ABI of libibverbs.so.1 that Wherry uses. Its version 1.1
 * has not changed since 2008, save for new members at the ends of structs. Names are those of the
 * manual pages. Posting and polling call through the context's table of functions.
 */
#ifndef WH_PLATFORM_VERBS_ABI_H
#define WH_PLATFORM_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { IBV_PORT_ACTIVE = 4 };
enum { IBV_LAYER_UNSPECIFIED = 0, IBV_LAYER_INFINIBAND = 1, IBV_LAYER_ETHERNET = 2 };
enum { IBV_GID_IB = 0, IBV_GID_ROCE_V1 = 1, IBV_GID_ROCE_V2 = 2 };
enum { IBV_QPT_RC = 2 };
enum { IBV_QPS_INIT = 1, IBV_QPS_RTR = 2, IBV_QPS_RTS = 3, IBV_QPS_ERR = 6 };
enum { IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1, IBV_WR_RDMA_READ = 4 };
enum { IBV_SEND_SIGNALED = 1 << 1, IBV_SEND_INLINE = 1 << 3 };
enum {
	IBV_ACCESS_LOCAL_WRITE = 1,
	IBV_ACCESS_REMOTE_WRITE = 2,
	IBV_ACCESS_REMOTE_READ = 4,
	/* optional: a library or kernel that does not know it may ignore it */
	IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};

enum {
	IBV_WC_SUCCESS = 0,
	IBV_WC_WR_FLUSH_ERR = 5,
	IBV_WC_REM_ACCESS_ERR = 10,
	IBV_WC_RETRY_EXC_ERR = 12,
	IBV_WC_RNR_RETRY_EXC_ERR = 13,
};

enum { IBV_WC_RECV_RDMA_WITH_IMM = 129 }; /* opcode of a completion */
enum { IBV_WC_WITH_IMM = 1 << 1 };

enum {
	IBV_EVENT_QP_FATAL = 1,
	IBV_EVENT_DEVICE_FATAL = 8,
	IBV_EVENT_PORT_ACTIVE = 9,
	IBV_EVENT_PORT_ERR = 10,
	IBV_EVENT_LID_CHANGE = 11,
	IBV_EVENT_GID_CHANGE = 18,
};

enum {
	IBV_QP_STATE = 1 << 0,
	IBV_QP_ACCESS_FLAGS = 1 << 3,
	IBV_QP_PKEY_INDEX = 1 << 4,
	IBV_QP_PORT = 1 << 5,
	IBV_QP_AV = 1 << 7,
	IBV_QP_PATH_MTU = 1 << 8,
	IBV_QP_TIMEOUT = 1 << 9,
	IBV_QP_RETRY_CNT = 1 << 10,
	IBV_QP_RNR_RETRY = 1 << 11,
	IBV_QP_RQ_PSN = 1 << 12,
	IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	IBV_QP_MIN_RNR_TIMER = 1 << 15,
	IBV_QP_SQ_PSN = 1 << 16,
	IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	IBV_QP_DEST_QPN = 1 << 20,
};

struct ibv_device; /* opaque here */
struct ibv_context;

union ibv_gid {
	uint8_t raw[16];
	uint64_t align;
};

struct ibv_gid_entry {
	union ibv_gid gid;
	uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct ibv_device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
	int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom;
	int max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw;
	int max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach;
	int max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr;
	int max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
};

/* The last member is newer than ibv_query_port(), which does not fill it. */
struct ibv_port_attr {
	int state, max_mtu, active_mtu, gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
	uint8_t active_width, active_speed, phys_state, link_layer, flags;
	uint16_t port_cap_flags2;
};

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle, lkey, rkey;
};

struct ibv_comp_channel {
	struct ibv_context *context;
	int fd, refcnt;
};

struct ibv_cq {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed, async_events_completed;
};

struct ibv_qp {
	struct ibv_context *context;
	void *qp_context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	void *srq;
	uint32_t handle, qp_num;
	int state, qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct ibv_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct ibv_qp_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq, *recv_cq;
	void *srq;
	struct ibv_qp_cap cap;
	int qp_type, sq_sig_all;
};

struct ibv_global_route {
	union ibv_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
};

struct ibv_ah_attr {
	struct ibv_global_route grh;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct ibv_qp_attr {
	int qp_state, cur_qp_state, path_mtu, path_mig_state;
	uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
	unsigned int qp_access_flags;
	struct ibv_qp_cap cap;
	struct ibv_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
	uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
	uint8_t alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

struct ibv_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct ibv_send_wr {
	uint64_t wr_id;
	struct ibv_send_wr *next;
	struct ibv_sge *sg_list;
	int num_sge, opcode;
	unsigned int send_flags;
	uint32_t imm_data; /* in network byte order, as in a completion */
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		uint64_t other[4]; /* atomics, datagrams */
	} wr;
	union {
		uint32_t remote_srqn;
		uint64_t align;
	} qp_type;
	uint64_t bind[6]; /* memory windows, segmentation */
};

struct ibv_recv_wr {
	uint64_t wr_id;
	struct ibv_recv_wr *next;
	struct ibv_sge *sg_list;
	int num_sge;
};

struct ibv_wc {
	uint64_t wr_id;
	int status, opcode;
	uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

struct ibv_async_event {
	union {
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		int port_num;
	} element;
	int event_type;
};

struct ibv_context_ops {
	void *before_poll_cq[11];
	int (*poll_cq)(struct ibv_cq *cq, int count, struct ibv_wc *wc);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	void *before_post_send[12];
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
	void *after_post_recv[5];
};

struct ibv_context {
	struct ibv_device *device;
	struct ibv_context_ops ops;
	int cmd_fd, async_fd, num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

#endif
