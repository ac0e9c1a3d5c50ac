/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of a handshake, HELLO, WELCOME and PROVE: made from an engine's identity, and checked
 * against its keys. wire/proof.h computes the proofs.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "net/channel.h"
#include "net/handshake.h"
#include "net/meet.h"
#include "net/records.h"
#include "net/trust.h"
#include "util/error.h"
#include "wire/record.h"
#include "wire/wire.h"

/* Fill in what HELLO and WELCOME have in common, with a fresh nonce. 0 or -EIO. */
static int hello_init(const struct wh_identity *self, uint16_t role, struct wh_hello *hello)
{
	*hello = (struct wh_hello){
		.version_min = WH_WIRE_VERSION,
		.version_max = WH_WIRE_VERSION,
		.role = role,
		.capabilities = self->capabilities,
		.epoch = self->epoch,
		.auth_length = WH_NONCE_SIZE,
	};
	memcpy(hello->host, self->host, sizeof(hello->host));
	memcpy(hello->name, self->name, sizeof(hello->name));
	return getrandom(hello->auth, WH_NONCE_SIZE, 0) == WH_NONCE_SIZE ? 0 : -EIO;
}

/* Encode a frame. Returns its length. */
static size_t hello_frame(const struct wh_hello *hello, enum wh_frame_type type,
			  uint8_t out[WH_GREETING_MAX])
{
	size_t length = wh_hello_encode(out + WH_FRAME_HEADER, hello);

	wh_frame_encode(out, &(struct wh_frame){ (uint32_t)length, (uint16_t)type, 0 });
	return WH_FRAME_HEADER + length;
}

/* ---- the initiator ----------------------------------------------------- */

int wh_hello_make(const struct wh_identity *self, const struct wh_hello *welcome, uint16_t role,
		  uint32_t connection, struct wh_greeting *out)
{
	struct wh_hello hello;
	int error = hello_init(self, role, &hello);

	hello.connection = connection;
	/* The control connection accepts any epoch: the peer learns from the WELCOME that the
	 * engine was restarted, which a refusal would not tell apart from other errors. */
	if (welcome) {
		hello.expected = welcome->epoch;
		hello.session = welcome->session;
	}
	out->length = hello_frame(&hello, WH_FRAME_HELLO, out->bytes);
	return error;
}

int wh_prove_make(const struct wh_trust *trust, uint16_t role, int fd,
		  const struct wh_channel *channel, const struct wh_greeting *hello,
		  const uint8_t *welcome, size_t length, const uint8_t *session,
		  uint8_t made[WH_KEY_SIZE], uint8_t out[WH_PROVE_SIZE])
{
	struct wh_keys keys = { .count = 1 };
	struct wh_proofs proofs;
	bool proved = false;
	int error = 0;

	if (session)
		memcpy(keys.key[0], session, WH_KEY_SIZE);
	else
		keys = trust->keys;
	/* Find the key that the owner has proved, and prove the same one. */
	for (unsigned i = 0; !error && !proved && i < keys.count; i++) {
		error = wh_channel_bind(channel, &trust->crypto, keys.key[i], keys.key[i],
					WH_KEY_SIZE);
		if (!error && role == WH_ROLE_LOCAL)
			error = wh_meet_bind(&trust->crypto, fd, false, keys.key[i]);
		if (!error)
			error = wh_proofs_make(
				&trust->crypto, keys.key[i], hello->bytes + WH_FRAME_HEADER,
				hello->length - WH_FRAME_HEADER, welcome, length, &proofs);
		proved = !error && wh_proof_equal(&trust->crypto, proofs.owner,
						  welcome + length - WH_PROOF_SIZE);
	}
	if (!error && !proved)
		error = wh_fail(
			EACCES,
			"it does not hold this engine's key (%.100s): name the same key on both "
			"sides with the setting keyfile",
			trust->source);
	/* Not earlier: the kernel knows the user of the other end only after it has accepted the
	 * connection, which WELCOME shows. */
	if (!error && role != WH_ROLE_LOCAL)
		error = wh_trust_check_user(trust, fd);
	if (!error) {
		wh_frame_encode(out, &(struct wh_frame){ WH_PROOF_SIZE, WH_FRAME_PROVE, 0 });
		memcpy(out + WH_FRAME_HEADER, proofs.initiator, WH_PROOF_SIZE);
	}
	if (!error && made)
		memcpy(made, proofs.session, WH_KEY_SIZE);
	explicit_bzero(&keys, sizeof(keys));
	explicit_bzero(&proofs, sizeof(proofs));
	return error;
}

/* ---- the channel ------------------------------------------------------- */

int wh_handshake_channel(const struct wh_greeting *hello, const uint8_t *welcome, size_t length,
			 int fd, bool owner, struct wh_channel **out)
{
	const uint8_t *payload = hello->bytes + WH_FRAME_HEADER;
	size_t payload_length = hello->length - WH_FRAME_HEADER;
	wh_crc32c *sum = wh_crc32c_choose()->sum;
	struct wh_hello said, answered;
	uint32_t both;

	*out = NULL;
	if (wh_hello_decode(payload, payload_length, &said) ||
	    wh_hello_decode(welcome, length, &answered))
		return -EPROTO;
	if (!((said.capabilities | answered.capabilities) & WH_WANTS_RECORDS))
		return 0;
	both = said.capabilities & answered.capabilities;
	if (!(both & WH_CAPABLE_RECORDS))
		return wh_fail(
			EOPNOTSUPP,
			"one engine asks for integrity=crc32c, which %s cannot: set integrity "
			"to none (WHERRY_INTEGRITY), or use a version of both that has it",
			said.capabilities & WH_CAPABLE_RECORDS ? "the one that answers" :
								 "the one that connects");
	*out = wh_records_new(
		fd, sum(sum(0, payload, payload_length), welcome, length),
		said.role == WH_ROLE_CONTROL ? WH_RECORD_CONTROL_MAX : WH_RECORD_DATA_MAX, owner);
	return *out ? 0 : -ENOMEM;
}

/* ---- the owner --------------------------------------------------------- */

int wh_welcome_make(const struct wh_identity *self, const struct wh_greeting *received,
		    const struct wh_hello *hello, uint64_t session, const uint8_t key[WH_KEY_SIZE],
		    struct wh_greeting *out, struct wh_proofs *proofs)
{
	struct wh_hello welcome;
	int error = hello_init(self, hello->role, &welcome);

	welcome.expected = hello->epoch;
	welcome.session = session;
	memcpy(welcome.socket, self->socket, sizeof(welcome.socket));
	/* The proof is the last field and covers everything before it. */
	welcome.auth_length = WH_NONCE_SIZE + WH_PROOF_SIZE;
	out->length = hello_frame(&welcome, WH_FRAME_WELCOME, out->bytes);
	if (!error)
		error = wh_proofs_make(&self->trust->crypto, key, received->bytes + WH_FRAME_HEADER,
				       received->length - WH_FRAME_HEADER,
				       out->bytes + WH_FRAME_HEADER, out->length - WH_FRAME_HEADER,
				       proofs);
	if (!error)
		memcpy(out->bytes + out->length - WH_PROOF_SIZE, proofs->owner, WH_PROOF_SIZE);
	return error;
}
