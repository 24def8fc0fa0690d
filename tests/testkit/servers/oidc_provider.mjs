// Runs oidc-provider with one client, and people who log in with any password.
import { pathToFileURL } from "node:url";

const env = process.env;
const entry = pathToFileURL(`${env.MODULES}/oidc-provider/lib/index.js`).href;
const { default: Provider } = await import(entry);
const people = JSON.parse(env.PEOPLE);
const provider = new Provider(env.ISSUER, {
  clients: [
    {
      client_id: env.CLIENT_ID,
      client_secret: env.CLIENT_SECRET,
      redirect_uris: [env.REDIRECT],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["groups"] },
  pkce: { required: () => true },
  cookies: { keys: ["a key of the test"] },
  async findAccount(_context, id) {
    const groups = people[id];
    if (groups === undefined) return undefined;
    return {
      accountId: id,
      claims: async () => ({ sub: id, email: id, email_verified: true, groups }),
    };
  },
});
provider.listen(Number(env.PORT), "127.0.0.1");
