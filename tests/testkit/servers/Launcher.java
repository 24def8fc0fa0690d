import java.io.File;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;

import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.plugins.PluginsLoader;

/** Starts one node of Elasticsearch whose home is the system property es.path.home. */
public class Launcher {
    public static void main(String[] arguments) throws Exception {
        Path home = new File(System.getProperty("es.path.home")).toPath();
        LogConfigurator.registerErrorListener();
        LogConfigurator.setNodeName("flumeng");
        Supplier name = new Supplier() {
            public Object get() {
                return "flumeng";
            }
        };
        Map properties = new HashMap();
        Environment environment = InternalSettingsPreparer.prepareEnvironment(
            Settings.builder().put("path.home", home.toString()).build(), properties, home.resolve("config"), name);
        LogConfigurator.configure(environment, true);
        PluginsLoader plugins = PluginsLoader.createPluginsLoader(
            PluginsLoader.loadModulesBundles(environment.modulesDir()),
            PluginsLoader.loadPluginsBundles(environment.pluginsDir()),
            new HashMap(),
            false);
        new Node(environment, plugins).start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
