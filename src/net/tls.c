/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TLS of an engine: its certificates or pre-shared keys, the check of the peer, and the texts
 * of OpenSSL's errors.
 */
#include "net/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"
#include "util/list.h"
#include "util/text.h"

/* Both use SHA-256, as the pre-shared keys do. The first is faster on CPUs with AES instructions.
 */
#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define EXPORTED "EXPORTER-wherry"

static _Thread_local struct wh_tls *entered;

void wh_tls_enter(struct wh_tls *tls)
{
	entered = tls;
}

struct wh_tls *wh_tls_entered(void)
{
	return entered;
}

/* ---- errors of OpenSSL ------------------------------------------------- */

static const char *openssl_reason(const struct wh_ssl *ssl)
{
	unsigned long error = ssl->ERR_peek_error();
	const char *text = error ? ssl->ERR_reason_error_string(error) : NULL;

	return text ? text : "no reason given";
}

/* Did the peer send the error, as an alert? */
static bool text_is_alert(const char *text)
{
	return strstr(text, " alert ");
}

static void tls_explain_alert(struct wh_tls *tls, const char *text)
{
	const char *certificate = tls->context->certificate;

	if (*certificate)
		snprintf(tls->text, sizeof(tls->text),
			 "it refuses this engine's certificate %.120s: %.80s", certificate, text);
	else
		snprintf(tls->text, sizeof(tls->text),
			 "it does not know this engine's key: name the same key on both sides with "
			 "the setting keyfile (TLS: %.80s)",
			 text);
}

int wh_tls_failed(struct wh_tls *tls, int result)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	int error = errno, kind = ssl->SSL_get_error(tls->ssl, result);
	const char *text;

	if (kind == WH_SSL_ERROR_WANT_READ || kind == WH_SSL_ERROR_WANT_WRITE)
		return -EAGAIN;
	if (kind == WH_SSL_ERROR_ZERO_RETURN)
		return -ECONNRESET;
	if (kind == WH_SSL_ERROR_SYSCALL) {
		error = error == EAGAIN ? 0 : error;
		snprintf(tls->text, sizeof(tls->text), "%s", strerror(error ? error : ECONNRESET));
		return error ? -error : -ECONNRESET;
	}
	text = openssl_reason(ssl);
	if (text_is_alert(text))
		tls_explain_alert(tls, text);
	else if (!*tls->text && strstr(text, "wrong version number"))
		snprintf(tls->text, sizeof(tls->text),
			 "it does not speak TLS: the setting tls is on here and off there");
	else if (!*tls->text) /* certificate_verified() has not set it */
		snprintf(tls->text, sizeof(tls->text), "TLS: %.120s", text);
	ssl->ERR_clear_error();
	return text_is_alert(text) || strstr(text, "certificate") ? -EACCES : -EPROTO;
}

/* ---- certificates ------------------------------------------------------ */

/* Get the common name of a certificate. False: it has none, or one that is not printable; names are
 * sent by peers and shown on terminals. */
static bool certificate_name(const struct wh_ssl *ssl, const struct x509_st *certificate,
			     char name[WH_NAME_MAX])
{
	const struct X509_name_st *subject = ssl->X509_get_subject_name(certificate);
	char text[WH_NAME_MAX + 1] = "";
	int length = subject ? ssl->X509_NAME_get_text_by_NID(subject, WH_NID_COMMON_NAME, text,
							      sizeof(text)) :
			       -1;

	if (length < 1 || length >= WH_NAME_MAX || strlen(text) != (size_t)length)
		return false;
	if (!wh_text_is_clean(text, (size_t)length))
		return false;
	memset(name, 0, WH_NAME_MAX);
	memcpy(name, text, (size_t)length);
	return true;
}

int wh_tls_identify(struct wh_tls *tls)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	struct x509_st *certificate;
	bool named;

	if (!*tls->context->certificate) {
		/* OpenSSL counts a handshake by a pre-shared key as a reused session. */
		if (ssl->SSL_session_reused(tls->ssl))
			return 0;
		snprintf(tls->text, sizeof(tls->text),
			 "it does not use the cluster key for TLS: the settings tls_cert, tls_key "
			 "and tls_ca are set there and not here");
		return -EACCES;
	}
	certificate = ssl->peer_certificate(tls->ssl);
	named = certificate && certificate_name(ssl, certificate, tls->name);
	if (certificate)
		ssl->X509_free(certificate);
	if (named)
		return 0;
	snprintf(tls->text, sizeof(tls->text),
		 "its certificate has no common name (CN) of 1 to %d printable bytes",
		 WH_NAME_MAX - 1);
	return -EACCES;
}

/* Callback: OpenSSL has verified one certificate of the peer's chain. Keep the first error for
 * wh_tls_failed(). */
static int certificate_verified(int good, struct x509_store_ctx_st *store)
{
	const struct wh_ssl *ssl = &entered->context->ssl;
	struct x509_st *certificate = ssl->X509_STORE_CTX_get_current_cert(store);
	char name[WH_NAME_MAX] = "without a common name";

	if (good || *entered->text)
		return good;
	if (certificate)
		certificate_name(ssl, certificate, name);
	snprintf(entered->text, sizeof(entered->text), "its certificate \"%s\" is refused: %.120s",
		 name, ssl->X509_verify_cert_error_string(ssl->X509_STORE_CTX_get_error(store)));
	return 0;
}

/* Check the private key's owner and mode: whoever can read it can impersonate this engine. */
static int certificate_check_key(const char *path)
{
	struct stat file;

	if (stat(path, &file))
		return wh_fail(errno, "tls_key=%.150s: %s", path, strerror(errno));
	if (file.st_mode & 077 || (file.st_uid != geteuid() && file.st_uid != 0))
		return wh_fail(EACCES,
			       "tls_key=%.120s belongs to user %u and has mode %03o: it must "
			       "belong to this user (%u) or root and be closed to others, chmod "
			       "600 it",
			       path, (unsigned)file.st_uid, file.st_mode & 0777u,
			       (unsigned)geteuid());
	return 0;
}

/* Password callback: OpenSSL's own would ask on the terminal, or read the program's input. */
static int certificate_no_password(char *into, int room, int writing, void *argument)
{
	struct wh_tls_context *context = argument;

	(void)into, (void)room, (void)writing;
	context->encrypted = true;
	return -1;
}

/* Fail because OpenSSL cannot use the file that a setting names. */
static int certificate_refuse_file(struct wh_tls_context *context, const char *setting,
				   const char *path, const char *wants)
{
	const struct wh_ssl *ssl = &context->ssl;
	char why[128];

	snprintf(why, sizeof(why), "%s",
		 context->encrypted ? "it is encrypted with a password" : openssl_reason(ssl));
	ssl->ERR_clear_error();
	return wh_fail(access(path, R_OK) ? errno : EINVAL, "%s=%.120s: %s; it must be %s", setting,
		       path, access(path, R_OK) ? strerror(errno) : why, wants);
}

static int context_use_certificates(struct wh_tls_context *context, const struct wh_config *config)
{
	const struct wh_ssl *ssl = &context->ssl;
	const char *certificate = config->text[WH_SETTING_TLS_CERT];
	const char *key = config->text[WH_SETTING_TLS_KEY], *ca = config->text[WH_SETTING_TLS_CA];
	int error;

	if (!*certificate || !*key || !*ca)
		return wh_fail(
			EINVAL,
			"the settings tls_cert, tls_key and tls_ca go together: %s is not set",
			!*certificate ? "tls_cert" :
			!*key         ? "tls_key" :
					"tls_ca");
	error = certificate_check_key(key);
	if (error)
		return error;
	ssl->SSL_CTX_set_default_passwd_cb(context->handle, certificate_no_password);
	ssl->SSL_CTX_set_default_passwd_cb_userdata(context->handle, context);
	if (ssl->SSL_CTX_use_certificate_chain_file(context->handle, certificate) != 1)
		return certificate_refuse_file(
			context, "tls_cert", certificate,
			"a PEM file with this engine's certificate and those above it");
	if (ssl->SSL_CTX_use_PrivateKey_file(context->handle, key, WH_SSL_FILETYPE_PEM) != 1 ||
	    ssl->SSL_CTX_check_private_key(context->handle) != 1)
		return certificate_refuse_file(context, "tls_key", key,
					       "a PEM file with the private key of tls_cert, "
					       "without a password");
	if (ssl->SSL_CTX_load_verify_locations(context->handle, ca, NULL) != 1)
		return certificate_refuse_file(
			context, "tls_ca", ca,
			"a PEM file with the certificates that sign those of all engines");
	ssl->SSL_CTX_set_verify(context->handle, WH_SSL_VERIFY_BOTH, certificate_verified);
	snprintf(context->certificate, sizeof(context->certificate), "%s", certificate);
	return 0;
}

/* ---- pre-shared keys --------------------------------------------------- */

/* Make the session that represents a pre-shared key. NULL: OpenSSL has no memory. */
static struct ssl_session_st *psk_session(struct ssl_st *handle, unsigned index)
{
	static const unsigned char aes_128_gcm_sha256[] = { 0x13, 0x01 };
	const struct wh_tls_context *context = entered->context;
	const struct wh_ssl *ssl = &context->ssl;
	const struct ssl_cipher_st *cipher = ssl->SSL_CIPHER_find(handle, aes_128_gcm_sha256);
	struct ssl_session_st *session = ssl->SSL_SESSION_new();

	if (session && cipher &&
	    ssl->SSL_SESSION_set1_master_key(session, context->shared[index].key, WH_KEY_SIZE) &&
	    ssl->SSL_SESSION_set_cipher(session, cipher) &&
	    ssl->SSL_SESSION_set_protocol_version(session, WH_TLS1_3_VERSION))
		return session;
	ssl->SSL_SESSION_free(session);
	return NULL;
}

/* Callback: the initiator offers its first key. */
static int psk_offer(struct ssl_st *handle, const struct evp_md_st *digest,
		     const unsigned char **identity, size_t *identity_length,
		     struct ssl_session_st **session)
{
	const char *name = entered->context->shared[0].name;

	(void)digest; /* all cipher suites use SHA-256 */
	*session = psk_session(handle, 0);
	*identity = (const unsigned char *)name;
	*identity_length = strlen(name);
	return *session != NULL;
}

/* Callback: the owner looks up the offered key among all of its own. Without one the handshake
 * fails. */
static int psk_look_up(struct ssl_st *handle, const unsigned char *identity, size_t identity_length,
		       struct ssl_session_st **session)
{
	const struct wh_tls_context *context = entered->context;

	*session = NULL;
	for (unsigned i = 0; i < context->count && !*session; i++) {
		if (strlen(context->shared[i].name) != identity_length ||
		    memcmp(context->shared[i].name, identity, identity_length) != 0)
			continue;
		*session = psk_session(handle, i);
		if (!*session)
			return 0;
	}
	if (!*session)
		snprintf(entered->text, sizeof(entered->text),
			 "it offers a key that this engine does not know: name the same key on "
			 "both sides with the setting keyfile");
	return 1;
}

static int context_use_keys(struct wh_tls_context *context, const struct wh_crypto *crypto,
			    const struct wh_keys *keys)
{
	static const char label[] = "wherry tls psk", prefix[] = "wherry ";
	int error = 0;

	context->count = keys->count;
	for (unsigned i = 0; !error && i < keys->count; i++) {
		memcpy(context->shared[i].name, prefix, sizeof(prefix));
		error = wh_key_fingerprint(crypto, keys->key[i],
					   context->shared[i].name + sizeof(prefix) - 1);
		if (!error)
			error = wh_crypto_hmac(crypto, keys->key[i], WH_KEY_SIZE, label,
					       sizeof(label) - 1, context->shared[i].key);
	}
	context->ssl.SSL_CTX_set_psk_use_session_callback(context->handle, psk_offer);
	context->ssl.SSL_CTX_set_psk_find_session_callback(context->handle, psk_look_up);
	return error;
}

/* ---- open -------------------------------------------------------------- */

bool wh_tls_by_certificate(const struct wh_config *config)
{
	return config->number[WH_SETTING_TLS] &&
	       (*config->text[WH_SETTING_TLS_CERT] || *config->text[WH_SETTING_TLS_KEY] ||
		*config->text[WH_SETTING_TLS_CA]);
}

/* Does the kernel have TLS? */
static bool kernel_has_tls(void)
{
	int fd = open("/proc/sys/net/ipv4/tcp_available_ulp", O_RDONLY | O_CLOEXEC);
	char text[256] = " ";
	ssize_t got = fd < 0 ? 0 : read(fd, text + 1, sizeof(text) - 3);

	if (fd >= 0)
		close(fd);
	if (got <= 0)
		return false;
	text[got] = ' '; /* instead of the newline */
	return strstr(text, " tls ");
}

static int context_set_up(struct wh_tls_context *context)
{
	const struct wh_ssl *ssl = &context->ssl;
	long modes = WH_SSL_MODE_RELEASE_BUFFERS;

	context->handle = ssl->SSL_CTX_new(ssl->TLS_method());
	if (!context->handle)
		return wh_fail(ENOMEM, "the setting tls: OpenSSL: %s", openssl_reason(ssl));
	context->socket = wh_tls_socket_new(ssl);
	if (!context->socket)
		return wh_fail(ENOMEM, "the setting tls: no memory");
	context->kernel = kernel_has_tls();
	ssl->SSL_CTX_ctrl(context->handle, WH_SSL_CTRL_MODE, modes, NULL);
	ssl->SSL_CTX_ctrl(context->handle, WH_SSL_CTRL_SET_SESS_CACHE_MODE, WH_SSL_SESS_CACHE_OFF,
			  NULL);
	ssl->SSL_CTX_set_options(context->handle,
				 WH_SSL_OP_NO_TICKET |
					 (context->kernel ? WH_SSL_OP_ENABLE_KTLS : 0));
	/* No session tickets: only payload follows the handshake. */
	if (!ssl->SSL_CTX_ctrl(context->handle, WH_SSL_CTRL_SET_MIN_PROTO_VERSION,
			       WH_TLS1_3_VERSION, NULL) ||
	    !ssl->SSL_CTX_set_num_tickets(context->handle, 0) ||
	    !ssl->SSL_CTX_set_ciphersuites(context->handle, CIPHERS))
		return wh_fail(EOPNOTSUPP,
			       "the setting tls: this OpenSSL has no TLS 1.3, or its policy "
			       "forbids " CIPHERS ": %s",
			       openssl_reason(ssl));
	return 0;
}

int wh_tls_open(const struct wh_config *config, const struct wh_crypto *crypto,
		const struct wh_keys *keys, struct wh_tls_context **out)
{
	struct wh_tls_context *context = calloc(1, sizeof(*context));
	int error;

	if (!context)
		return wh_fail(ENOMEM, "the setting tls: no memory");
	error = wh_ssl_open(&context->ssl, NULL);
	if (!error)
		error = context_set_up(context);
	if (!error)
		error = wh_tls_by_certificate(config) ? context_use_certificates(context, config) :
							context_use_keys(context, crypto, keys);
	if (error) {
		wh_tls_close(context);
		return error;
	}
	*out = context;
	return 0;
}

void wh_tls_close(struct wh_tls_context *context)
{
	if (!context)
		return;
	if (context->handle)
		context->ssl.SSL_CTX_free(context->handle);
	if (context->socket)
		context->ssl.BIO_meth_free(context->socket);
	wh_ssl_close(&context->ssl);
	explicit_bzero(context->shared, sizeof(context->shared));
	free(context);
}

/* ---- connections ------------------------------------------------------- */

int wh_tls_step(struct wh_tls *tls)
{
	int result;

	wh_tls_enter(tls);
	result = tls->context->ssl.SSL_do_handshake(tls->ssl);
	wh_tls_enter(NULL);
	return result;
}

const char *wh_tls_text(const struct wh_tls *tls)
{
	return tls->text;
}

const char *wh_tls_name(const struct wh_tls *tls)
{
	return tls->name;
}

void wh_tls_describe(const struct wh_tls *tls, char *out, size_t size)
{
	const struct wh_ssl *ssl = &tls->context->ssl;
	const struct ssl_cipher_st *cipher = ssl->SSL_get_current_cipher(tls->ssl);
	const char *name = cipher ? ssl->SSL_CIPHER_get_name(cipher) : "TLS_no cipher yet", *end;

	/* Leave out what all names have in common: a route's detail has little room. */
	name += strncmp(name, "TLS_", 4) ? 0 : 4;
	end = strstr(name, "_POLY1305");
	end = end ? end : strstr(name, "_SHA256");
	snprintf(out, size, "%s TLS 1.3, %.*s", tls->kernel_sends ? "kernel" : "encrypted:",
		 (int)(end ? (size_t)(end - name) : strlen(name)), name);
}

int wh_tls_bind(const struct wh_tls *tls, const struct wh_crypto *crypto,
		const uint8_t key[WH_KEY_SIZE], uint8_t out[WH_KEY_SIZE])
{
	uint8_t secret[WH_MAC_SIZE];
	int error = -EIO;

	if (tls->context->ssl.SSL_export_keying_material(tls->ssl, secret, sizeof(secret), EXPORTED,
							 sizeof(EXPORTED) - 1, NULL, 0, 0) == 1)
		error = wh_crypto_hmac(crypto, secret, sizeof(secret), key, WH_KEY_SIZE, out);
	explicit_bzero(secret, sizeof(secret));
	return error;
}

/* ---- the channel ------------------------------------------------------- */

static struct wh_tls *tls_of(struct wh_channel *channel)
{
	return wh_container(channel, struct wh_tls, channel);
}

static const struct wh_tls *tls_of_const(const struct wh_channel *channel)
{
	return wh_container(channel, const struct wh_tls, channel);
}

static void channel_free(struct wh_channel *channel)
{
	wh_tls_free(tls_of(channel));
}

static int channel_handshake(struct wh_channel *channel)
{
	return wh_tls_handshake(tls_of(channel));
}

static bool channel_established(const struct wh_channel *channel)
{
	return wh_tls_established(tls_of_const(channel));
}

static ssize_t channel_send(struct wh_channel *channel, const struct iovec *parts, int count)
{
	return wh_tls_send(tls_of(channel), parts, count);
}

static ssize_t channel_receive(struct wh_channel *channel, const struct iovec *parts, int count)
{
	return wh_tls_receive(tls_of(channel), parts, count);
}

static int channel_flush(struct wh_channel *channel)
{
	return wh_tls_flush(tls_of(channel));
}

static bool channel_unsent(const struct wh_channel *channel)
{
	return wh_tls_unsent(tls_of_const(channel));
}

static bool channel_pending(const struct wh_channel *channel)
{
	return wh_tls_pending(tls_of_const(channel));
}

static const char *channel_text(const struct wh_channel *channel)
{
	return wh_tls_text(tls_of_const(channel));
}

static const char *channel_name(const struct wh_channel *channel)
{
	return wh_tls_name(tls_of_const(channel));
}

static void channel_describe(const struct wh_channel *channel, char *out, size_t size)
{
	wh_tls_describe(tls_of_const(channel), out, size);
}

static int channel_bind(const struct wh_channel *channel, const struct wh_crypto *crypto,
			const uint8_t *key, uint8_t *out)
{
	return wh_tls_bind(tls_of_const(channel), crypto, key, out);
}

static const struct wh_channel_ops tls_ops = {
	.held = WH_TLS_HELD,
	.free = channel_free,
	.handshake = channel_handshake,
	.established = channel_established,
	.send = channel_send,
	.receive = channel_receive,
	.flush = channel_flush,
	.unsent = channel_unsent,
	.pending = channel_pending,
	.text = channel_text,
	.name = channel_name,
	.describe = channel_describe,
	.bind = channel_bind,
};

struct wh_channel *wh_tls_channel_new(struct wh_tls_context *context, int fd, bool accepting)
{
	struct wh_tls *tls = wh_tls_new(context, fd, accepting);

	if (!tls)
		return NULL;
	tls->channel.ops = &tls_ops;
	return &tls->channel;
}
