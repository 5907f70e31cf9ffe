package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// ErrNotPinned says that the other end of a connection is not who it must be.
var ErrNotPinned = errors.New("the certificate of the other end is not the one that was announced over the control connection")

// Identity is an ephemeral key with a certificate. It is never stored.
type Identity struct {
	certificate tls.Certificate
	fingerprint string
}

// NewIdentity makes an identity for one migration.
func NewIdentity() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-24 * time.Hour), // the clocks of hosts differ
		NotAfter:     now.Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	sum := sha256.Sum256(der)
	return &Identity{
		certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		fingerprint: hex.EncodeToString(sum[:]),
	}, nil
}

// Fingerprint returns the SHA-256 of the certificate, in hex: what the other side pins.
func (i *Identity) Fingerprint() string { return i.fingerprint }

// ServerConfig is for the side that listens: TLS 1.3 with nobody but the peer with this
// fingerprint.
func (i *Identity) ServerConfig(peer string) (*tls.Config, error) {
	config, err := i.config(peer)
	if err != nil {
		return nil, err
	}
	config.ClientAuth = tls.RequireAnyClientCert
	return config, nil
}

// ClientConfig is for the side that dials.
func (i *Identity) ClientConfig(peer string) (*tls.Config, error) {
	config, err := i.config(peer)
	if err != nil {
		return nil, err
	}
	config.InsecureSkipVerify = true // VerifyConnection asks for more than a chain would
	return config, nil
}

func (i *Identity) config(peer string) (*tls.Config, error) {
	pinned, err := hex.DecodeString(peer)
	if err != nil || len(pinned) != sha256.Size {
		return nil, fmt.Errorf("identity: %.80q is not a fingerprint", peer)
	}
	return &tls.Config{
		Certificates:                []tls.Certificate{i.certificate},
		MinVersion:                  tls.VersionTLS13,
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true, // full records from the start
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.DidResume || len(state.PeerCertificates) == 0 {
				return ErrNotPinned
			}
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(sum[:], pinned) != 1 {
				return ErrNotPinned
			}
			return nil
		},
	}, nil
}

// Client proves over a connection who each side is, as the one that dialed. It closes the
// connection if that fails.
func Client(ctx context.Context, raw net.Conn, config *tls.Config) (net.Conn, error) {
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}
